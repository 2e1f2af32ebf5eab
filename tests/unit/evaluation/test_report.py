"""Reports over runs: reading folders, checkpoint selection, tables against numpy, ablations and refusals."""

import csv
import io
import json
import re

import numpy as np
import pytest
from cases import cases
from test_curves import write_log

from openrlhf_shear.cli import report as cli
from openrlhf_shear.evaluation.comparison.cells import choose, sections
from openrlhf_shear.evaluation.comparison.page import make_report, write_report
from openrlhf_shear.evaluation.comparison.runs import Evaluation, ReportError, Run, read_run
from openrlhf_shear.evaluation.comparison.tables import latex, make_scores, markdown, rests_on, to_csv
from openrlhf_shear.evaluation.estimators import Basis

MODEL = "Qwen/Qwen2.5-Math-7B"
CREDIT = {"window": 100, "stride": 25, "distance": "sinkhorn", "normalize": "cross_rollout", "pool": "max",
          "epsilon": 4.5, "epsilon_rel": 0.015, "epsilon_spread": None}  # fmt: skip
STEPS = (0, 5, 10)
BENCHMARKS = ("math500", "aime24", "new_set")


def write_run(folder, curves, **facts):
    write_log(folder / "tensorboard" / "name", {tag: points.items() for tag, points in curves.items()})
    if facts:
        (folder / "tensorboard" / "run.json").write_text(json.dumps(facts))
    return folder


def facts(method="shear", seed=0, **changes):
    credit = {**CREDIT, **changes} if method == "shear" else None
    return {"method": method, "model": MODEL, "task": "math", "seed": seed, "group": 8, "credit": credit}


def training(seconds=10.0):
    return {"train/rollout/reward_mean": {1: 0.5, 2: 0.5}, "train/timing/step_total": {1: seconds, 2: seconds}}


def suite(values):
    """`values`: benchmark -> one value a step of STEPS."""
    curves = {f"eval/suite/{name}": dict(zip(STEPS, row, strict=True)) for name, row in values.items()}
    return curves | {"eval/suite/average": dict(zip(STEPS, np.mean(list(values.values()), axis=0), strict=True))}


def evaluated(average=0.5, step=5, scores=None, **changes):
    """A run in memory."""
    scores = {"aime24": average} if scores is None else scores
    found = (Evaluation(step, scores, float(np.mean(list(scores.values())))),)
    made = {"folder": "run", "method": "shear", "model": MODEL, "task": "math", "seed": 0, "group": 8, "credit": CREDIT}
    return Run(**{**made, "evaluations": found, **changes})


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """3 seeds x 2 methods with known numbers: (folders, method -> array of seeds x benchmarks x steps)."""
    folder = tmp_path_factory.mktemp("study")
    generator = np.random.default_rng(0)
    numbers = {method: generator.uniform(0.1, 0.9, (3, 3, 3)) for method in ("grpo", "shear")}
    folders = [
        write_run(
            folder / f"{method}{seed}",
            suite(dict(zip(BENCHMARKS, values[seed], strict=True)))
            | training(10.0 + seed if method == "grpo" else 12.0),
            **facts(method, seed),
        )
        for method, values in numbers.items()
        for seed in range(3)
    ]
    return folders, numbers


def expected(values):
    """Per benchmark and for the average (mean, std) in percent: the best step's column of each seed, in numpy."""
    trained = values[:, :, 1:]
    best = trained.mean(axis=1).argmax(axis=1)
    chosen = np.array([seed[:, at] for seed, at in zip(trained, best, strict=True)])
    chosen = 100 * np.c_[chosen, chosen.mean(axis=1)]
    return np.c_[chosen.mean(axis=0), chosen.std(axis=0, ddof=1)]


def test_the_csv_holds_numpys_mean_and_sample_std(study):
    folders, numbers = study
    (table,) = make_scores(sections(map(read_run, folders)), "best")
    rows = {row["method"]: row for row in csv.DictReader(io.StringIO(to_csv(table)))}
    assert table.columns == ("aime24", "math500", "new_set", "average")  # the paper's order, unknown ones last
    for method, label in (("grpo", "GRPO"), ("shear", "SHEAR")):
        for name, (mean, std) in zip((*BENCHMARKS, "average"), expected(numbers[method]), strict=True):
            assert float(rows[label][f"{name}_mean"]) == pytest.approx(mean, abs=1e-4)
            assert float(rows[label][f"{name}_std"]) == pytest.approx(std, abs=1e-4)
        assert rows[label]["seeds"] == rows[label]["average_n"] == "3"
    assert float(rows["Base model"]["average_mean"]) == pytest.approx(100 * numbers["grpo"][:, :, 0].mean(), abs=1e-4)


def test_markdown_and_latex_hold_the_same_numbers(study):
    folders, numbers = study
    (table,) = make_scores(sections(map(read_run, folders)), "best")
    order = [1, 0, 2, 3]  # aime24 first
    shear, grpo = (expected(numbers[method])[order] for method in ("shear", "grpo"))
    lines = {line.split(" | ")[0].strip("| "): line for line in markdown(table).splitlines() if line.startswith("|")}
    cells = [cell.strip() for cell in lines["SHEAR"].strip("|").split("|")][1:]
    base = [100 * v for v in np.r_[numbers["grpo"][:, [1, 0, 2], 0].mean(axis=0), numbers["grpo"][:, :, 0].mean()]]
    for cell, (mean, std), (other, _), start in zip(cells, shear, grpo, base, strict=False):
        assert cell.strip("*") == f"{mean:.1f} ± {std:.1f}"
        assert cell.startswith("**") == (mean > max(other, start))
    assert cells[-1] == "3"
    row = next(line for line in latex(table).splitlines() if line.startswith("SHEAR"))
    found = re.findall(r"(?:\\textbf{)?([\d.]+)}?\\std{([\d.]+)}", row)
    assert found == [(f"{mean:.1f}", f"{std:.1f}") for mean, std in shear]
    assert row.count(r"\textbf") == sum(cell.startswith("**") for cell in cells)
    assert r"AIME24 & MATH500 & new\_set & Avg \\" in latex(table)
    assert latex(table).count("{") == latex(table).count("}")


def test_one_seed_has_no_std_and_missing_values_are_no_zeros():
    runs = [
        evaluated(scores={"aime24": 0.25, "amc23": 0.75}),
        evaluated(scores={"aime24": 0.5}, method="grpo", credit=None),
    ]
    (table,) = make_scores(sections(runs), "best")
    lines = markdown(table).splitlines()
    assert "| SHEAR | 25.0 | 75.0 | 50.0 | 1 |" in lines
    assert "| GRPO | **50.0** | - | - | 1 |" in lines  # its average is over another suite
    assert "GRPO & \\textbf{50.0} & - & - \\\\" in latex(table)
    grpo = next(row for row in csv.DictReader(io.StringIO(to_csv(table))) if row["method"] == "GRPO")
    assert grpo["amc23_mean"] == grpo["average_mean"] == "" and grpo["amc23_n"] == "0"


def test_a_value_of_fewer_seeds_says_so():
    runs = [evaluated(0.5, seed=0), evaluated(0.7, seed=1), evaluated(seed=2, evaluations=())]
    (table,) = make_scores(sections(runs), "best")
    assert "| SHEAR | 60.0 ± 14.1 (n=2) | 60.0 ± 14.1 (n=2) | 3 |" in markdown(table)


def test_names_are_escaped_in_every_format():
    name = "<script>alert(1)</script>|a_b&50%*"
    (table,) = make_scores(sections([evaluated(method=name, credit=None)]), "best")
    assert r"\<script\>alert(1)\</script\>\|a\_b\&50%\*" in markdown(table)
    assert r"\textless{}script\textgreater{}" in latex(table) and r"|a\_b\&50\%*" in latex(table)
    assert next(csv.DictReader(io.StringIO(to_csv(table))))["method"] == name


def test_the_best_average_wins_and_not_the_best_benchmark():
    steps = (
        Evaluation(0, {"a": 0.9, "b": 0.9}, 0.9),  # the base model is no checkpoint
        Evaluation(5, {"a": 0.9, "b": 0.1}, 0.5),
        Evaluation(10, {"a": 0.6, "b": 0.6}, 0.6),
        Evaluation(15, {"a": 0.5, "b": 0.7}, 0.6),
        Evaluation(20, {"a": 0.2, "b": 0.2}, 0.2),
    )
    run = evaluated(evaluations=steps)
    assert choose(run, "best").step == 10  # of equals the earlier
    assert choose(run, "last").step == 20
    assert choose(run, 5).step == 5 and choose(run, 0).step == 0 and choose(run, 7) is None


def test_a_step_that_lacks_a_benchmark_is_left_out(tmp_path):
    curves = suite({"aime24": [0.1, 0.2, 0.9], "amc23": [0.1, 0.2, 0.9]}) | training()
    del curves["eval/suite/amc23"][10]
    run = read_run(write_run(tmp_path, curves, **facts()))
    assert [found.step for found in run.evaluations] == [0, 5]
    assert "left out, as not every benchmark was evaluated: steps 10" in run.notes


def test_a_training_run_is_read_with_its_facts(study):
    run = read_run(study[0][3])
    assert (run.method, run.model, run.task, run.seed, run.group) == ("shear", MODEL, "math", 0, 8)
    assert run.credit == CREDIT and run.seconds_per_step == 12.0 and run.notes == ()
    assert [found.step for found in run.evaluations] == list(STEPS)


def test_an_evaluations_folder_is_a_row_without_a_curve(tmp_path):
    from openrlhf_shear.evaluation.run import results, write_results
    from openrlhf_shear.sampling.records import Completion, Question, Verdict

    questions = {("amc23", str(i)): Question("amc23", str(i), [], "1") for i in range(4)}
    completions = [Completion("amc23", str(i), 0, "", 3, False, Verdict(i < 3)) for i in range(4)]
    write_results(results(questions, completions, {"amc23": "math"}, {"amc23": 1}), tmp_path / "results.json")
    (tmp_path / "settings.json").write_text(json.dumps({"model": "models/x", "seed": 1, "temperature": 0.1}))
    run = read_run(tmp_path)
    assert (run.method, run.model, run.task, run.seed) == ("-", "models/x", "math", 1)
    basis = Basis(problems=4, limit=None, truncated=0.0, no_answer=0.0)
    assert run.evaluations == (Evaluation(None, {"amc23": 0.75}, 0.75, {"amc23": basis}),)
    assert run.others == {"temperature of amc23": 0.1, "template of amc23": None, "k of amc23": 1}
    (table,) = make_scores(sections([run]), "best")
    assert "| - | 75.0 | 75.0 | 1 |" in markdown(table)


def write_evaluation(folder, benchmark, limit, seed=0, score=0.0, truncated=1.0):
    row = {"task": "math", "problems": 3, "k": 1, "graded": 3, "avg@1": score, "truncated_fraction": truncated}
    folder.mkdir()
    results = {"benchmarks": {benchmark: row | {"reasons": {"no_answer": 2, "wrong": 1}}}}
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "settings.json").write_text(json.dumps({"model": "m", "seed": seed, "max_new_tokens": limit}))
    return read_run(folder)


def test_evaluations_of_different_benchmarks_are_one_row_whatever_their_limits(tmp_path):
    runs = [write_evaluation(tmp_path / "a", "aime24", 320), write_evaluation(tmp_path / "b", "gsm8k", 64, 0, 0.5, 0.2)]
    runs += [write_evaluation(tmp_path / "c", "aime24", 320, seed=1, truncated=0.5)]
    (table,) = make_scores(sections(runs), "best")
    assert "| - | 0.0 ± 0.0 | 50.0 (n=1) | 25.0 (n=1) | 2 |" in markdown(table)
    with pytest.raises(ReportError, match="max_new_tokens of aime24 is 320 and 640"):
        sections([*runs, write_evaluation(tmp_path / "d", "aime24", 640, seed=2)])
    for file, known in (("settings", {"template": "Q: {}"}), ("grading", {"answer_format": "boxed"})):
        others = []
        for seed, part in enumerate((known, {name: "other" for name in known})):
            write_evaluation(folder := tmp_path / f"{file}{seed}", "gsm8k", 64, seed)
            path = folder / f"{file}.json"
            path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | part))
            others.append(read_run(folder))
        with pytest.raises(ReportError, match=f"{next(iter(known))} of gsm8k is"):
            sections(others)
    with pytest.raises(ReportError, match="are both seed 0"):
        sections([*runs[:2], write_evaluation(tmp_path / "e", "aime24", 320)])


def test_the_basis_of_a_score_is_beside_it_in_every_form(tmp_path, capsys):
    runs = [write_evaluation(tmp_path / "a", "aime24", 320)]
    runs += [write_evaluation(tmp_path / "b", "aime24", 320, seed=1, truncated=0.5)]
    (table,) = make_scores(sections(runs), "best")
    assert "| AIME24 | - | 0.0 ± 0.0 | 3 of 30 | 320 | 75.0% | 66.7% | 2 |" in markdown(table)
    row = next(csv.DictReader(io.StringIO(to_csv(table))))
    rests = [row[f"aime24_{name}"] for name in ("problems", "limit", "truncated", "no_box")]
    assert rests == ["3", "320", "75.0", "66.7"]
    assert rests_on(table)[0].notes == ["AIME24, -: 75.0% of the completions were cut off at 320 tokens"]
    cli.main([*(str(run.folder) for run in runs), "--output", str(tmp_path / "report")])
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.startswith(("┏", "┃", "│"))]  # and paths of any length
    assert "3 of 30" in printed and "75.0%" in printed and max(map(len, rows)) <= 80
    page = (tmp_path / "report/index.html").read_text()
    assert "<td>3 of 30</td><td>320</td><td>75.0%</td><td>66.7%</td>" in page


def test_a_training_run_shows_the_basis_of_its_scores(tmp_path):
    logged = {"problems": 3.0, "truncated_fraction": 0.25, "no_answer_fraction": 0.5}
    tags = {f"eval/suite_{what}/aime24": dict.fromkeys(STEPS, value) for what, value in logged.items()}
    curves = suite({"aime24": [0.1, 0.2, 0.3]}) | training() | tags
    run = write_run(tmp_path, curves, **facts(), max_len=512)
    (table,) = make_scores(sections([read_run(run)]), "best")
    assert "| AIME24 | SHEAR | **30.0** | 3 of 30 | 512 | 25.0% | 50.0% | 1 |" in markdown(table)


@pytest.mark.parametrize(*cases("evaluation", "test_a_folder_that_is_no_run_is_an_error"))
def test_a_folder_that_is_no_run_is_an_error(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ReportError, match=re.escape(message)):
        read_run(tmp_path)


def test_the_folder_above_several_runs_is_an_error(study):
    with pytest.raises(ReportError, match="holds several runs"):
        read_run(study[0][0].parent)


def test_runs_that_differ_in_more_than_the_seed_are_refused_by_name():
    runs = [evaluated(others={"lr": 1e-6}), evaluated(seed=1, folder="other", others={"lr": 2e-6})]
    with pytest.raises(ReportError, match=r"run and other .* lr is 1e-06 and 2e-06"):
        sections(runs)
    with pytest.raises(ReportError, match="run and other are both seed 0 of shear"):
        sections([evaluated(), evaluated(folder="other")])


def test_the_table_shows_the_setting_that_ablations_start_from():
    runs = ablated()
    (section,) = sections(runs)
    assert {label: row.runs for label, row in section.rows.items()} == {"GRPO": (runs[-1],), "SHEAR": (runs[0],)}
    both = sections([*runs, evaluated(0.1, credit=CREDIT | {"window": 80, "pool": "mean"})])[0].rows
    assert list(both) == ["GRPO", "SHEAR", "SHEAR (w = 80, pool = mean)"]


def test_settings_without_a_centre_are_rows_of_their_own():
    runs = [evaluated(credit=CREDIT | {"window": window}) for window in (8, 16)]
    far = [evaluated(credit=CREDIT | {"window": 8, "distance": distance}) for distance in ("mmd", "sinkhorn")]
    assert sections(far)[0].rows["SHEAR"].runs == (far[1],)  # nearer to the paper's
    assert list(sections(runs)[0].rows) == ["SHEAR (w = 8)", "SHEAR (w = 16)"]


def ablated():
    """A run for each thing that ablations change, another group size, and GRPO."""
    changes = ({}, {"distance": "mmd"}, {"normalize": "none"}, {"pool": "mean"},
               {"epsilon": 1.5}, {"window": 80}, {"stride": 50})  # fmt: skip
    runs = [evaluated(0.5 + i / 100, credit=CREDIT | change) for i, change in enumerate(changes)]
    return [*runs, evaluated(0.6, group=16), evaluated(0.4, method="grpo", credit=None)]


def test_an_epsilon_of_the_spread_is_a_setting():
    spread = evaluated(0.6, credit=CREDIT | {"epsilon": None, "epsilon_spread": 0.1, "max_waiting_bytes": 1})
    (picture,) = (each for each in make_report([evaluated(), spread]).pictures if each.name.startswith("epsilon"))
    assert [row[0] for row in picture.rows] == ["4.5", "0.1 x std(C)"]


def test_the_figures_of_a_study_and_why_the_others_are_missing(study):
    report = make_report(map(read_run, study[0]))
    (method, overhead, std, seeds) = report.pictures[-1].rows[0]
    assert [picture.heading for picture in report.pictures] == [
        *("Training curves", "Rollout reward", "Training time relative to GRPO")
    ]
    assert (method, seeds) == ("SHEAR", 3) and std == 0 and overhead == pytest.approx(100 * (12 / 11 - 1))
    assert len(report.omitted) == 18 and "differ in distance alone" in report.omitted[11].reason


def test_the_curves_of_training(tmp_path):
    tags = ("rollout/response_length_mean", "ppo_kl", "vllm_kl", "entropy_loss", "shear/omega_mean")
    tags += ("shear/credit_share",)
    curves = {f"train/{tag}": {1: 0.25, 2: 0.5} for tag in tags}
    run = read_run(write_run(tmp_path, training() | curves | {"train/kl": {1: 0.0, 2: 0.0}}, **facts()))
    report = make_report([run])
    assert [picture.heading for picture in report.pictures] == [
        *("Rollout reward", "Response length", "KL of the update", "KL between engines and policy"),
        *("Entropy of the policy", "Token weight omega", "Credit share of the step"),
    ]
    assert report.pictures[-1].rows == (("SHEAR (1 seed)", 1, 25.0, ""), ("SHEAR (1 seed)", 2, 50.0, ""))
    assert "it is 0 without a reference" in next(o.reason for o in report.omitted if o.heading == "KL to the reference")


def test_each_sweep_becomes_a_figure():
    pictures = make_report(ablated()).pictures
    bars = [f"{knob}_bars" for knob in ("distance", "normalize", "pool", "epsilon")]
    names = [f"{name}_math_qwen2.5_math_7b" for name in (*bars, "span_grid", "group_bars")]
    assert [picture.name for picture in pictures] == names
    assert [row[:2] for row in pictures[0].rows] == [("sinkhorn", 50.0), ("mmd", 51.0), ("GRPO", 40.0)]
    grid = {row[:2]: row[2] for row in pictures[4].rows}
    assert grid == pytest.approx({(100, 25): 50.0, (80, 25): 55.0, (100, 50): 56.0})


def test_a_curve_has_the_steps_that_all_seeds_share():
    def with_steps(seed, *steps):
        found = tuple(Evaluation(step, {"aime24": 0.1 * seed}, 0.1 * seed) for step in steps)
        return evaluated(seed=seed, evaluations=found)

    report = make_report([with_steps(1, 5, 10, 15), with_steps(2, 5, 10)])
    rows = report.pictures[0].rows
    assert [row[1] for row in rows] == [5, 10]
    assert rows[0][2:] == (pytest.approx(15.0), pytest.approx(100 * np.std([0.1, 0.2], ddof=1)))


def test_command_writes_every_file_and_prints_the_table(study, tmp_path, capsys):
    cli.main([*map(str, study[0]), "--output", str(tmp_path / "report"), "--select", "last"])
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert {"index.html", "table_math.md", "table_math.csv", "table_math.tex"} <= names
    for ending in ("png", "svg", "csv"):
        assert {f"training_{what}_math_qwen2.5_math_7b.{ending}" for what in ("curves", "time")} <= names
    printed = capsys.readouterr()
    last = 100 * study[1]["shear"][:, :, 2].mean(axis=1)
    assert f"{last.mean():.1f} ± {last.std(ddof=1):.1f}" in printed.out
    (left_out,) = (line for line in printed.err.splitlines() if line.startswith("left out"))
    assert "Group size G" in left_out


def test_the_same_runs_give_the_same_bytes(study, tmp_path):
    report = make_report([read_run(study[0][0])])
    first, second = (
        {path.name: path.read_bytes() for path in write_report(report, tmp_path / name)} for name in ("one", "two")
    )
    assert first == second
