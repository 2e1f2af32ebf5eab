"""The page of results and the README's chart are what `benchmarks/results_page.py` makes of the files of results."""

import io
import json
import lzma
import re
import subprocess
import tomllib
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest

pytest.importorskip("matplotlib", reason="needs the extra [tools]")
import numpy as np
from equal_kl import gain_interval
from matplotlib.image import imread
from results_page import CHART, PAGE, RESULTS, TUNED, bookkeeping_gains, chart, lab_gains, page, read
from scipy.stats import spearmanr, t

from openrlhf_shear.report.estimates import Paired
from openrlhf_shear.report.figures import render

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
STUDY, BENCH = ((ROOT / "docs" / f"{name}.md").read_text() for name in ("study-bookkeeping", "credit-bench"))
TRACKING = (ROOT / "docs/tracking.md").read_text(encoding="utf-8")
ROWS = tomllib.loads((ROOT / "benchmarks/results_rows.toml").read_text())


def test_the_page_has_the_tables_of_today():
    assert PAGE.read_text() == page(PAGE.read_text()), "PYTHONPATH=. python benchmarks/results_page.py"


def test_the_comparison_beside_grpo_at_four_rates_follows_from_its_runs():
    """By numpy and scipy, over the seeds that the page names."""
    with lzma.open(RESULTS / "step_size_runs.jsonl.xz", "rt") as lines:
        runs = [run for run in map(json.loads, lines) if run["seed"] in range(300, 314)]

    def scores(rule, rate=1e-4):
        own = {r["seed"]: r for r in runs if (r["rule"], r["settings"].get("learning_rate", 1e-4)) == (rule, rate)}
        return np.array([np.mean(own[seed]["accuracy"]) for seed in range(300, 314)])

    judged = "error_odds/surprisal=4/entropy=0/reach=32/epsilon_rel=0.015"
    pairs = [(judged, f"{judged}/matched", 1e-4), (judged, "uniform", 2e-4), ("error_odds", "error_odds/matched", 1e-4)]
    for rule, other, rate in pairs:
        gains = 100 * (scores(rule) - scores(other, rate))
        low, high = t.interval(0.95, 13, gains.mean(), gains.std(ddof=1) / 14**0.5)
        assert f"{gains.mean():+.1f} ({low:+.1f} to {high:+.1f})" in STUDY, (rule, other)
    rows = read("step_size")["rows"]
    for rule, pages in ((judged, (STUDY, README, BENCH)), ("error_odds", (STUDY,))):
        (row,) = (row for row in rows if row["rule"] == rule)
        equal = {k: 100 * v for k, v in row["equal_steps"].items() if v}
        said = "{mean:+.1f} ({low:+.1f} to {high:+.1f})".format(**equal)
        assert all(said in page for page in pages) and row["seeds"] == [*range(300, 314)], (rule, said)


def test_every_file_of_results_has_a_row():
    files = [row["file"] for rows in ROWS.values() for row in rows]
    assert sorted(files) == sorted(path.name for path in RESULTS.glob("*.json"))


def test_every_commit_and_script_of_the_page_is_one():
    text = PAGE.read_text()
    todays = re.sub("`git checkout [^`]*`", "", text)
    for script in re.findall(r"(?:examples/scripts|benchmarks)/\w+\.(?:sh|py)", todays):
        assert (ROOT / script).is_file(), script
    commits = {
        commit for cells in re.findall(r"^\| \[.*", text, re.M) for commit in re.findall(r"\b[0-9a-f]{7}\b", cells)
    }
    assert len(commits) > 20
    if (ROOT / ".git").exists() and not (ROOT / ".git/shallow").exists():
        git = ["git", "-C", ROOT, "rev-list", "HEAD"]  # a commit of a branch that is gone is in no clone
        history = subprocess.run(git, capture_output=True, text=True, check=True).stdout.splitlines()
        assert not commits - {commit[:7] for commit in history}


def test_the_kept_chart_is_drawn_from_the_kept_numbers():
    """A point that is off by a tenth of a percentage point moves more pixels than these."""
    kept, drawn = imread(CHART), imread(io.BytesIO(render(chart(), "png")))
    assert kept.shape == drawn.shape and (np.abs(kept - drawn).max(axis=-1) > 0.1).sum() < 20


def test_the_readme_has_these_numbers():
    lab, books = lab_gains(), bookkeeping_gains()
    (large,) = (
        row for row in read("ledger_comparison")["differences"] if row["part"] == "5.1M" and row["rule"] == "shear"
    )
    bench = map(json.loads, (RESULTS / "credit_bench.jsonl").read_text().splitlines())
    bench = {row["rule"]: row for row in bench if row["task"] == "bookkeeping" and row["learning_rate"] == 1e-4}
    old, fresh = ({row["rule"]: row for row in read(name)["rules"]} for name in ("credit_lab_all", "credit_lab_fresh"))
    judged = "error_odds/surprisal=4/entropy=0/reach=32/epsilon_rel=0.015"
    of = {"part": "judged", "rule": judged, "over": f"{judged}/matched"}
    (own,) = (row for row in read("ledger_comparison")["differences"] if of.items() <= row.items())
    found = [
        *(lab["error_odds"], books["shear"], books["error_odds"], books["oracle_first_wrong/matched"], books[TUNED]),
        *(Paired(**large["mean"]), Paired(**own["mean"]), Paired(**old["shear"]["against"]["baseline"]["mean"])),
        Paired(**fresh["error_odds"]["against"]["matched"]["mean"]),
        Paired(**fresh["error_odds"]["against"]["baseline"]["final"]),
        Paired(**bench["error_odds"]["equal_steps"]),
    ]
    for gain in found:
        values = [f"{round(100 * value, 1) + 0.0:+.1f}" for value in gain.shown]
        assert f"{values[0].replace('+0.0', '0.0')} ({values[1]} to {values[2]})" in README, values


def test_the_size_of_a_step_predicts_the_gain_as_the_study_says():
    with lzma.open(RESULTS / "bookkeeping_runs.jsonl.xz", "rt") as lines:
        runs = [run for run in map(json.loads, lines) if run["seed"] < 14]
    kl, accuracy, balance = defaultdict(list), defaultdict(list), defaultdict(list)
    for run in runs:
        if not {"start", "learning_rate"} & run["settings"].keys():
            kl[run["rule"]].append(fmean(run["metrics"]["kl"][:10]))
            accuracy[run["rule"]].append(fmean(run["accuracy"]))
            blame, praise = (fmean(run["metrics"][f"{side}_credit"][:10]) for side in ("negative", "positive"))
            balance[run["rule"]].append(-blame / praise)
    arms = [rule for rule in kl if len(kl[rule]) == 14]
    rho = spearmanr([fmean(kl[rule]) for rule in arms], [fmean(accuracy[rule]) for rule in arms]).statistic
    said = re.search(r"Over the (\d+) arms, the KL of a step .*?\s([\d.]+)\.\s", STUDY, re.S)
    assert (str(len(arms)), f"{rho:.2f}") == said.groups()
    rho = spearmanr(*([fmean(of[rule]) for rule in arms] for of in (balance, kl))).statistic
    assert f"over {len(arms)} arms of bookkeeping its rank correlation" in TRACKING and f"is {rho:.2f}." in TRACKING


@pytest.mark.parametrize(("table", "task"), [("bookkeeping", "bookkeeping"), ("credit_bench", "arithmetic")])
def test_gains_at_equal_steps_are_those_of_the_kept_runs(table, task):
    """By numpy and scipy, from the runs: every row, between the two rates of GRPO whose KL bracket the rule's."""
    with lzma.open(RESULTS / f"{table}_runs.jsonl.xz", "rt") as lines:
        runs = [run for run in map(json.loads, lines) if run["seed"] < 14 and "start" not in run["settings"]]
    lines = map(json.loads, (RESULTS / "credit_bench.jsonl").read_text().splitlines())
    rows = [row for row in lines if row["task"] == task and row["difference"]]
    said = (ROOT / "docs/credit-bench.md").read_text().partition("## The columns")[0]

    def of(rule, rate, seeds):
        own = {r["seed"]: r for r in runs if (r["rule"], r["settings"].get("learning_rate", 1e-4)) == (rule, rate)}
        if {*own} < {*seeds}:
            return None
        kl = np.array([np.mean(own[seed]["metrics"]["kl"][:10]) for seed in seeds])
        return kl, np.array([np.mean(own[seed]["accuracy"]) for seed in seeds])

    def at_equal_kl(arm, rule, seeds):
        curve = [end for rate in (5e-5, 1e-4, 1.4e-4, 2e-4) if (end := of(rule, rate, seeds))]
        ends = [(a, b) for a, b in pairwise(curve) if a[0].mean() <= arm[0].mean() <= b[0].mean()]
        return gain_interval(arm, *ends[0]) if ends else None

    for row in rows:
        own = of(row["rule"], row["learning_rate"], row["seeds"])
        base = of("uniform", row["baseline_learning_rate"], row["seeds"])
        assert row["step_kl"] == pytest.approx(own[0].mean() / base[0].mean())
        gain, loss = at_equal_kl(own, "uniform", row["seeds"]), at_equal_kl(base, row["rule"], row["seeds"])
        on_its_curve = loss and [-loss[0], -loss[2], -loss[1]]
        for expected, name in ((gain, "equal_steps"), (on_its_curve, "at_its_steps")):
            found = row[name] and [row[name][each] for each in ("mean", "low", "high")]
            assert found == (expected and pytest.approx(expected, abs=1e-8)), (row["rule"], name)
        texts = ["{:+.1f} ({:+.1f} to {:+.1f})".format(*100 * np.array(each)) for each in (gain, on_its_curve) if each]
        pages = {"error_odds": [said], "shear": []}.get(row["rule"], [])
        if row["learning_rate"] == 1e-4 and task == "bookkeeping" and row["rule"] in ("error_odds", "shear"):
            pages = [said, README]
        assert all(text in page for page in pages for text in texts), (row["rule"], texts)
        assert not pages or len(texts) == 1
