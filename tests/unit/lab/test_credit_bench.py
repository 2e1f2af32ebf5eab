"""The credit bench: rows from finished runs, versions of tasks, boards of comparable rows, and their pages."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from browsing import each, load, loads_alone
from command_lines import refusal
from lab_cases import write_run

from openrlhf_shear.cli import credit_bench
from openrlhf_shear.cli.credit_bench import main
from openrlhf_shear.lab import bench
from openrlhf_shear.lab.bench import task_version
from openrlhf_shear.lab.leaderboard import BEGIN, END, boards, html, markdown
from openrlhf_shear.lab.policy import fingerprint
from openrlhf_shear.lab.runs import jobs
from openrlhf_shear.lab.settings import SEEDS, TRACKS, LabSettings
from openrlhf_shear.lab.tasks import task_of
from openrlhf_shear.lab.variants import parse_rules
from openrlhf_shear.report.bootstrap import Bootstrap
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.tasks.arithmetic import task as arithmetic
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR

DOCS = Path(__file__).parents[3] / "docs"
ROWS = Path(__file__).parents[3] / "benchmarks/results/credit_bench.jsonl"
SMALL = {"steps": 2, "samples_per_prompt": 4, "eval_problems": 2, "placement_prompts": 2, "precision": "float32"}
TRACK = LabSettings(**SMALL, window=8)
RULES = "uniform,oracle_first_wrong,entropy_adv"
ACCURACY = {"uniform": (0.5, 0.4, 0.6), "oracle_first_wrong": (0.6, 0.7, 0.7), "entropy_adv": (0.4, 0.4, 0.6)}
KL = {"uniform": [1e-4, 3e-4], "oracle_first_wrong": [2e-4, 4e-4], "entropy_adv": [1e-4, 1e-4]}


@pytest.fixture(autouse=True)
def three_seeds(monkeypatch, request):
    if "kept" not in request.node.name:
        monkeypatch.setitem(SEEDS, "arithmetic", range(3))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The rows of three rules with finished runs, by rule: the entries and the folder."""
    folder = tmp_path_factory.mktemp("bench")
    wanted = jobs(TRACK, parse_rules(RULES), range(3), POLICY_DIR, fingerprint(POLICY_DIR), folder / "runs")
    for job in wanted:
        metrics = {"credit_seconds": [0.5, 0.1], "seconds": [1.0, 1.0], "kl": KL[job.variant.name]}
        write_run(job, ACCURACY[job.variant.name][job.seed], metrics=metrics)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(credit_bench, "TRACKS", {"arithmetic": TRACK})
        patch.setitem(SEEDS, "arithmetic", range(3))
        line = ["run", "--rules", RULES, "--tasks", "arithmetic", "--read_only", "--continuations", "3"]
        main([*line, "--output", str(folder / "runs"), "--rows", str(folder / "rows.jsonl")])
    return {row["rule"]: row for row in bench.read_rows(folder / "rows.jsonl")}, folder


def test_a_row_has_its_differences_to_uniform_over_paired_seeds(made):
    row = made[0]["oracle_first_wrong"]
    assert (row["seeds"], row["measure"], row["learning_rate"]) == ([0, 1, 2], "mean", 1e-4)
    assert row["differences"] == pytest.approx({"0": 0.1, "1": 0.3, "2": 0.1})
    assert row["difference"]["mean"] == pytest.approx(0.5 / 3) and row["difference"]["seeds"] == 3
    assert row["score"] == pytest.approx(2 / 3) and row["iqm"]["value"] == pytest.approx(0.5 / 3)
    # of the nine pairs, 0.6 beats 0.5 and 0.4 and ties with 0.6; 0.7 beats all, twice
    assert row["improvement"]["value"] == pytest.approx((2.5 + 3 + 3) / 9)
    assert row["cost"] == pytest.approx(0.3), "the median share of a step"


def test_a_row_says_where_its_numbers_come_from(made):
    rows, folder = made
    row = rows["entropy_adv"]
    assert {"commit", "command", "machine", "versions"} <= row.keys() and row["runs"] == []
    assert row["knobs"]["estimator"] == "entropy_adv" and row["task"] == "arithmetic"
    assert row["version"] == task_version(TRACK, POLICY_DIR) and row["start"] == fingerprint(POLICY_DIR)[:12]
    assert row["setting"]["steps"] == 2 and "learning_rate" not in row["setting"]
    assert len((folder / "rows.jsonl").read_text().splitlines()) == 3


def test_placement_and_correlation_are_of_the_rule(made):
    oracle, uniform = made[0]["oracle_first_wrong"], made[0]["uniform"]
    assert oracle["largest"]["value"] == oracle["share"]["value"] == 1.0
    assert uniform["correlation"]["value"] == 0.0 < oracle["correlation_incorrect"]["value"]
    assert uniform["difference"] is uniform["iqm"] is uniform["improvement"] is None
    assert oracle["continuations"] == 3 and 0 < oracle["exact"] < 0.1, "of arithmetic only the ends are exact"
    assert oracle["ceiling"] == uniform["ceiling"]


def test_a_row_tells_the_size_of_its_steps_and_an_oracle(made):
    rows = made[0]
    assert [row["step_kl"] for row in rows.values()] == pytest.approx([0.5, 1.5, 1.0])
    assert [row["oracle"] for row in rows.values()] == [row["rule"] == "oracle_first_wrong" for row in rows.values()]
    assert rows["oracle_first_wrong"]["equal_steps"] is None, "uniform has one rate here"


def test_the_same_rule_in_the_same_setting_has_one_row(made, tmp_path):
    row = made[0]["entropy_adv"]
    file, others = tmp_path / "x/y.jsonl", ({"learning_rate": 2e-4}, {"baseline_learning_rate": 2e-4})
    said = [bench.write_row(row | changes, file) for changes in ({"score": 0.1}, *others, {"score": 0.2})]
    assert said == ["", "", "", ": 0.2000, earlier 0.1000 on the same kind of machine"]
    rows = bench.read_rows(file)
    assert len(rows) == 3 and sum(each["score"] == 0.2 for each in rows) == 1 and row | {"score": 0.1} not in rows
    assert "on another kind of machine" in bench.write_row(row | {"kind": {"cpu": ["a"]}}, file)
    with pytest.raises(ValueError, match="the row of entropy_adv there has 3 seeds, and this one 2; train"):
        bench.write_row(row | {"seeds": [0, 1]}, file)
    with pytest.raises(ValueError, match=r"another rule there is called entropy_adv; rename yours, or remove that row"):
        bench.write_row(row | {"knobs": {"estimator": "entropy_adv", "source": "x"}}, file)
    file.write_text(f"{json.dumps(row)}\n{{}}\n")
    with pytest.raises(ValueError, match=r"y\.jsonl, line 2, is no row of the credit bench; remove it"):
        bench.read_rows(file)


# ── Versions ──


def test_a_version_changes_with_what_the_task_does_alone(monkeypatch):
    version = task_version(TRACK, POLICY_DIR)
    assert version == task_version(replace(TRACK, steps=9, learning_rate=1.0), POLICY_DIR)
    assert version != task_version(replace(TRACK, operations=6), POLICY_DIR)
    assert version != task_version(LabSettings(task="bookkeeping"), task_of(LabSettings(task="bookkeeping")).shipped())
    written, check, problems = arithmetic.write_solution, arithmetic.check, arithmetic.make_problems
    for name, changed in (
        ("write_solution", lambda *of: written(*of).replace("~", ".")),
        ("check", lambda *of: replace(check(*of), first_error=None)),
        ("max_response_tokens", lambda *of: 151),
        ("make_problems", lambda n, seed, *of: [*problems(n, seed + 1, *of)]),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(arithmetic, name, changed)
            assert task_version(TRACK, POLICY_DIR) != version, name
    assert task_version(TRACK, POLICY_DIR) == version


# ── Boards ──


def board_of(rows, versions=None):
    return boards(rows, versions or {"arithmetic": task_version(TRACK, POLICY_DIR)})


def test_only_equal_versions_starts_settings_and_baselines_share_a_board(made):
    rows = [*made[0].values()]
    (board,) = board_of(rows)
    assert board.current and [row["rule"] for row in board.rows] == ["oracle_first_wrong", "uniform", "entropy_adv"]
    changes = {"version": "older"}, {"start": "other"}, {"setting": rows[0]["setting"] | {"steps": 3}}
    changes = *changes, {"measure": "evaluated"}, {"baseline_learning_rate": 2e-4}
    for change in changes:
        both = board_of([*rows, rows[0] | change])
        assert [len(each.rows) for each in both] == [3, 1]
        assert [each.current for each in both] == [True, "version" not in change]
    last = board_of([*rows, *(row | {"version": "older"} for row in rows)])[-1]
    assert "another version of the task" in last.title and not last.current
    assert len(board_of([*rows, rows[0] | {"learning_rate": 2e-4}])) == 1, "a rule may have been tuned"


@pytest.mark.parametrize("seeds", [[0, 1], [7, 8, 9], [0, 1, 2, 3]])
def test_a_row_without_the_seeds_of_its_task_is_marked_and_not_on_the_page(made, seeds):
    rows = [made[0]["uniform"], made[0]["entropy_adv"] | {"seeds": seeds}]
    (board,) = board_of(rows)
    assert any(f"({seeds[0]} to {seeds[-1]}), not all seeds of the task" in str(cell) for cell in board.cells[1])
    assert "entropy_adv" not in markdown([board], f"{BEGIN}\n{END}\n") and "entropy_adv" in html([board])


def test_a_rule_at_two_rates_counts_once_and_at_its_better_one(made):
    rows = [*made[0].values()]
    tuned = made[0]["entropy_adv"] | {"learning_rate": 2e-4, "difference": rows[0]["difference"] | {"mean": 0.5}}
    (board,) = board_of([*rows, tuned])
    assert len(board.rows) == 4 and [row["rule"] for row in board._by_rule].count("entropy_adv") == 1
    assert next(row for row in board._by_rule if row["rule"] == "entropy_adv")["learning_rate"] == 2e-4


def test_the_page_has_the_tables_between_its_two_lines(made):
    made_boards = board_of(made[0].values())
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    shown = markdown(made_boards, page)
    assert shown.startswith(f"before\n{BEGIN}\n") and shown.endswith(f"{END}\nafter\n") and "old" not in shown
    assert (
        "| `oracle_first_wrong` (oracle) | 3 (0 to 2) | +16.7 (" in shown and "| `uniform` | 3 (0 to 2) |  |" in shown
    )
    assert "Over 2 rules" not in shown, "two rules predict nothing"
    assert markdown(made_boards, shown) == shown
    for broken in ("no lines", BEGIN, END):
        with pytest.raises(ValueError, match="the page has no place for the tables"):
            markdown(made_boards, broken)


ATTACK = "<script>alert(1)</script>"


def test_names_are_text_and_nothing_is_loaded_from_elsewhere(made):
    rows = [row | {"rule": ATTACK + row["rule"], "command": ATTACK} for row in made[0].values()]
    text = html(board_of(rows))
    assert ATTACK not in text and "&lt;script&gt;alert(1)&lt;/script&gt;" in text and text.count("<script") == 1
    assert set(re.findall(r'\b(?:src|href)="([^"]*)"', text)) == {"data:,", "#main", "credit-bench.html"}


def test_a_click_sorts(browser, made, tmp_path):
    path = tmp_path / "board.html"
    path.write_text(html(board_of(made[0].values())))
    loads_alone(browser, path)
    load(browser, path)
    browser.execute_script("document.querySelectorAll('th button')[2].click()")
    assert each(browser, "tbody th", "n.textContent") == ["oracle_first_wrong (oracle)", "entropy_adv", "uniform"]
    browser.execute_script("document.querySelectorAll('th button')[2].click()")
    assert each(browser, "tbody th", "n.textContent")[0] == "entropy_adv"


# ── The command ──


def test_the_command_makes_both_pages(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(credit_bench, "TRACKS", {"arithmetic": TRACK})
    page = tmp_path / "docs/page.md"
    page.parent.mkdir()
    page.write_text(f"{BEGIN}\n{END}\n")
    line = [
        "table",
        "--rows",
        str(made[1] / "rows.jsonl"),
        "--page",
        str(page),
        "--sorted",
        str(tmp_path / "board.html"),
    ]
    main(line)
    assert "oracle_first_wrong" in page.read_text() and "oracle_first_wrong" in (tmp_path / "board.html").read_text()
    assert (tmp_path / "docs/images/credit_bench_arithmetic.png").is_file()
    assert "oracle_first_wrong" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("run --rules shear --tasks arithmetic,books", "no task is called 'books'; use arithmetic, bookkeeping"),
        ("run --rules shear --continuations 0", "--continuations must be at least 1: got 0"),
        ("run --rules shear --baseline_rates fast", "--baseline_rates must be different positive numbers: got 'fast'"),
        ("run --rules shear --curve_rates 1,1", "--curve_rates must be different positive numbers: got '1,1'"),
        ("run --rules shaer", "did you mean shear"),
        ("run --rules shear/windw=3", "windw"),
        ("table --rows nowhere", "--rows: no rows in nowhere; make some with the action run"),
        (f"table --rows {ROWS} --page nowhere.md", "--page: there is no file nowhere.md; copy docs/credit-bench.md"),
        ("tabel", "did you mean table?"),
    ],
)
def test_a_mistake_is_one_line(line, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = refusal(capsys, line.split(), main)
    assert told in said and "\n" not in said and not list(tmp_path.iterdir())


# ── The kept rows ──


def test_the_docs_show_the_kept_rows():
    rows = bench.read_rows(ROWS)
    versions = {task: task_version(track, task_of(track).shipped()) for task, track in TRACKS.items()}
    page = (DOCS / "credit-bench.md").read_text()
    made = boards(rows, versions)
    assert markdown(made, page) == page and html(made) == (DOCS / "leaderboard.html").read_text()
    assert {row["version"] for row in rows} <= {*versions.values()}, (
        "a task has changed: its rows are of another version"
    )
    (first, *_), said = (
        made,
        page.partition("## What it says so far")[2].partition("## Leaderboard")[0].replace("\n", " "),
    )
    of = {row["rule"]: Estimate(**row["correlation"]).text(".3f") for row in first.rows}
    assert of["shear"] in said and of["text"] in said and first.prediction.text(".2f").removesuffix(")") in said


def test_a_rule_without_runs_has_a_row_without_a_gain(made):
    (variant,) = parse_rules("shear")
    truth = bench.kept_truth(TRACK, POLICY_DIR, fingerprint(POLICY_DIR), 3, made[1] / "runs")
    about = {"version": "v", "start": "s", "baseline_learning_rate": 1e-4}
    row = bench.make_row(TRACK, variant, [], {}, {}, truth, about, Bootstrap(10))
    assert (row["seeds"], row["measure"]) == ([], "mean")
    assert row["score"] is row["difference"] is row["cost"] is None
