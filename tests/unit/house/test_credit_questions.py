"""docs/credit-questions.md has the kept answers, and these follow from the table of runs."""

import json
import lzma
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from equal_kl import gain_interval
from ledger_comparison import points
from scipy.stats import ttest_1samp

from openrlhf_shear.report.estimates import paired

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/credit-questions.md").read_text()
ANSWERS = json.loads((ROOT / "benchmarks/results/credit_questions.json").read_text())["questions"]
with lzma.open(ROOT / "benchmarks/results/credit_questions_runs.jsonl.xz", "rt") as lines:
    RUNS = [run for run in map(json.loads, lines) if run["seed"] < 900]  # 920 and on: of the tuning
MEASURES = {  # of a run
    "evaluated": lambda run: np.mean(run["evaluations"]),
    "final": lambda run: run["final"],
    "best": lambda run: max(run["evaluations"]),
    "steps": lambda run: np.mean(run["accuracy"]),
}


@pytest.mark.parametrize("number", ANSWERS)
def test_the_kept_answers_follow_from_the_table_of_runs(number):
    """By numpy and scipy: differences over the seeds that both rules have, each at its best rate."""
    answer = ANSWERS[number]
    row, by = answer["difference"], defaultdict(dict)
    for run in RUNS:
        if answer["rates"].get(run["rule"]) == run["settings"].get("learning_rate", 1e-4):
            by[run["rule"]][run["seed"]] = run
    mine, its = by[row["rule"]], by[answer["over"]]
    assert mine.keys() == its.keys() == {*range(200, 224)}
    for measure, of in MEASURES.items():
        differences = [of(mine[seed]) - of(its[seed]) for seed in sorted(mine)]
        low, high = ttest_1samp(differences, 0).confidence_interval(0.95)
        kept = [row[measure][name] for name in ("mean", "low", "high")]
        assert kept == pytest.approx([np.mean(differences), low, high], abs=1e-9)
    first, second = (np.array([MEASURES["evaluated"](runs[seed]) for seed in sorted(mine)]) for runs in (mine, its))
    assert row["p"] == pytest.approx(ttest_1samp(first - second, 0).pvalue)
    assert row["iqm"]["value"] == pytest.approx(np.mean(sorted(first - second)[6:18]))
    chances = [(a > b) + 0.5 * (a == b) for a in first for b in second]
    assert row["improvement"]["value"] == pytest.approx(np.mean(chances))


def test_the_page_has_the_kept_answers():
    for answer in ANSWERS.values():
        row = answer["difference"]
        shown = [points(row[name]) for name in MEASURES] + [points(row["iqm"] | {"mean": row["iqm"]["value"]})]
        shown.append("{value:.2f} ({low:.2f} to {high:.2f})".format(**row["improvement"]))
        assert [text for text in shown if text not in PAGE] == []
        assert answer["conclusion"].split(",")[0] in PAGE.replace("Words", "words")


def test_the_gate_and_the_hours_of_the_real_model_are_those_of_its_two_steps():
    kept = json.loads((ROOT / "benchmarks/results/smollm2_gate.json").read_text())
    steps, (runs, of) = kept["steps"], kept["planned"].values()
    mixed, right = (" and ".join(f"{value:.0%}" for value in steps[name]) for name in ("mixed_groups", "reward"))
    text = " ".join(PAGE.split())
    assert (
        kept["gate"]["passed"] == (steps["mixed_groups"][0] >= 1 / 3)
        and f"{mixed}** in the first two steps, with {right}" in text
    )
    seconds = steps["seconds"][1]  # the first also warms up
    assert f"{seconds:.0f} s on two cores, so the {runs} runs take {runs * of * seconds / 3600:.0f} hours" in text
    assert f"{of} steps of 64 rollouts" in text


def test_the_tuning_of_question_4_follows_from_its_runs():
    """By numpy and scipy: each arm's best rate on the four seeds, and the differences there."""
    with lzma.open(ROOT / "benchmarks/results/question_4_runs.jsonl.xz", "rt") as lines:
        runs = [run for run in map(json.loads, lines) if run["seed"] in range(930, 934)]
    by = defaultdict(dict)
    for run in runs:
        kl, rate = np.mean(run["metrics"]["kl"][:10]), run["settings"].get("learning_rate", 1e-4)
        by[run["rule"], rate][run["seed"]] = kl, np.mean(run["accuracy"])
    arms = {arm: np.array([its[seed] for seed in range(930, 934)]).T for arm, its in by.items()}
    best = {}
    for rule in ("uniform", "shear", "oracle_first_wrong"):
        best[rule] = max((arm for arm in arms if arm[0] == rule), key=lambda arm: arms[arm][1].mean())
    assert [rate for _, rate in best.values()] == [1e-4, 1.4e-4, 1.4e-4]
    grpo, shear, oracle = (arms[arm] for arm in best.values())
    said = []
    for arm in (oracle, shear):
        low, high = ttest_1samp(arm[1] - grpo[1], 0).confidence_interval(0.95)
        said.append((np.mean(arm[1] - grpo[1]), low, high))
    said.append(gain_interval(shear, grpo, arms["uniform", 1.4e-4]))
    texts = ["{:+.1f} ({:+.1f} to {:+.1f})".format(*100 * np.array(each)) for each in said]
    assert [text for text in texts if text not in " ".join(PAGE.split())] == []
    short = " SHEAR ".join(text.split()[0] + "," * (i == 0) for i, text in enumerate(texts[:2]))
    assert f"an oracle has {short} |" in (ROOT / "docs/credit-bench.md").read_text()


def test_what_the_page_says_of_single_seeds_and_ties():
    by_seed = [*ANSWERS["1"]["difference"]["by_seed"].values()]
    without = [paired(by_seed[:i] + by_seed[i + 1 :]).high for i in range(len(by_seed))]
    assert paired(by_seed).high < 0.01
    text = f"without any\none of {sum(high > 0.01 for high in without)} of the {len(by_seed)} seeds it lies above 1"
    assert text in PAGE
    best = defaultdict(list)
    for run in RUNS:
        if run["settings"].get("steps") == 20:
            best[run["seed"]].append(max(run["evaluations"]))
    ties = [len({*pair}) == 1 for pair in best.values()]
    assert f"{sum(ties)} of the {len(ties)} best evaluations are ties" in PAGE
