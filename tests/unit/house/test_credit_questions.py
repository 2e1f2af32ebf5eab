"""docs/credit-questions.md has the kept answers, and these follow from the table of runs."""

import json
import lzma
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from ledger_comparison import points
from scipy.stats import ttest_1samp

from openrlhf_shear.report.estimates import paired

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/credit-questions.md").read_text()
TEXT = " ".join(PAGE.split())
ANSWERS = json.loads((ROOT / "benchmarks/results/credit_questions.json").read_text())["questions"]
with lzma.open(ROOT / "benchmarks/results/credit_questions_runs.jsonl.xz", "rt") as lines:
    RUNS = [run for run in map(json.loads, lines) if run["seed"] < 900]  # 920 and on: of the tuning
with lzma.open(ROOT / "benchmarks/results/question_4_runs.jsonl.xz", "rt") as lines:
    QUESTION_4 = [*map(json.loads, lines)]
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


def rate(run):
    return run["settings"].get("learning_rate", 1e-4)


def difference(values):
    low, high = ttest_1samp(values, 0).confidence_interval(0.95)
    return "{:+.1f} ({:+.1f} to {:+.1f})".format(*100 * np.array([np.mean(values), low, high]))


def test_the_tuning_of_question_4_follows_from_its_runs():
    """By numpy and scipy: each arm's best rate on the four seeds, SHEAR at GRPO's rate, and the matched control."""
    by = defaultdict(dict)
    for run in QUESTION_4:
        if run["seed"] in range(930, 934):
            by[run["rule"], rate(run)][run["seed"]] = np.mean(run["metrics"]["kl"][:10]), np.mean(run["accuracy"])
    arms = {arm: np.array([its[seed] for seed in range(930, 934)]).T for arm, its in by.items()}
    tuned = RATES | {MATCHED: 2e-4}
    best = [max((arm for arm in arms if arm[0] == rule), key=lambda arm: arms[arm][1].mean()) for rule in tuned]
    assert dict(best) == tuned
    grpo, shear = arms["uniform", 1e-4], arms["shear", 1e-4]
    ratio = shear[0].mean() / grpo[0].mean()
    said = f"it has the same {difference(shear[1] - grpo[1])} at GRPO's rate, with steps as large ({ratio:.2f})"
    assert said in TEXT
    oracle, matched = (arms[rule, tuned[rule]][1] for rule in ("oracle_first_wrong", MATCHED))
    assert f"spread evenly, has {difference(matched - grpo[1])} over GRPO" in TEXT
    assert f"and the oracle {difference(oracle - matched)} over that" in TEXT


MATCHED = "oracle_first_wrong/matched"
RATES = {"uniform": 1e-4, "shear": 1.4e-4, "oracle_first_wrong": 1.4e-4}  # the best of question 4's tuning
EXPLORED = (("uniform", 5e-5), ("uniform", 7e-5), ("shear", 7e-5))
CONCLUSIONS = ("no verdict", "SHEAR gains", "SHEAR loses", "worth less than 1.5 points", "undecided")


def conclusion(shear, oracle):
    """The plan's first row that holds, of differences over GRPO."""
    (low, high), (of_oracle, _) = (ttest_1samp(each, 0).confidence_interval(0.95) for each in (shear, oracle))
    return CONCLUSIONS[(of_oracle <= 0, low > 0, high < 0, high < 0.015, True).index(True)]


def test_the_answer_to_question_4_follows_from_its_runs():
    """By numpy and scipy: the differences, the plan's reading with and without each seed, and the course."""
    by = defaultdict(dict)
    for run in QUESTION_4:
        planned = run["seed"] < 900 and run["settings"].get("mini_batches", 2) == 2
        if planned and RATES.get(run["rule"]) == rate(run):
            by[run["rule"]][run["seed"]] = run
    assert all(by[rule].keys() == {*range(400, 426)} for rule in RATES)
    grpo, *others = ([by[rule][seed] for seed in range(400, 426)] for rule in RATES)

    def over(runs, measure):
        return np.array([MEASURES[measure](own) - MEASURES[measure](its) for own, its in zip(runs, grpo, strict=True)])

    def row(title, form, *cells):
        assert f"| {title} | {' | '.join(form(cell) for cell in cells)} |" in TEXT

    def thirds(runs, *names):
        metrics = [np.array([run["metrics"][name] for run in runs], float).reshape(26, 3, 20) for name in names]
        means = [np.nanmean(metric, axis=(0, 2)) for metric in metrics]
        return ", ".join(f"{mean:.2f}" for mean in (-means[0] / means[1] if len(means) > 1 else means[0]))

    gains = [over(runs, "steps") for runs in others]
    without = [[np.delete(each, i) for each in gains] for i in range(26)]
    assert {conclusion(*gains), *(conclusion(*left) for left in without)} == {"SHEAR loses"}
    assert (
        f"**SHEAR loses {-100 * gains[0].mean():.1f} points here" in TEXT and "without any one of the 26 seeds" in TEXT
    )
    row("**primary**: mean accuracy of the steps", difference, *gains)
    row("last evaluation", difference, *(over(runs, "final") for runs in others))
    ends = [[ttest_1samp(each, 0).confidence_interval(0.95) for each in left] for left in zip(*without, strict=True)]
    nearest = max(end.high for end in ends[0]), min(end.low for end in ends[1])
    row("nearest to 0 that an end of this interval comes without a seed", lambda end: f"{100 * end:+.1f}", *nearest)
    of_grpo, *sizes = (np.mean([run["metrics"]["kl"][:10] for run in runs]) for runs in (grpo, *others))
    row("KL of a step, over GRPO's", lambda size: f"{size / of_grpo:.2f}", *sizes)
    row(
        "blame over praise, by thirds of the training",
        str,
        *(thirds(runs, "negative_credit", "positive_credit") for runs in others),
    )
    row("weights of the last quarter over the first", str, *(thirds(runs, "contrast/last_first") for runs in others))
    assert f"GRPO has {np.mean([MEASURES['steps'](run) for run in grpo]):.1%}" in TEXT
    for page in ("README.md", "docs/credit-bench.md"):
        assert all(difference(gain) in (ROOT / page).read_text() for gain in gains), page


def test_the_exploratory_runs_of_question_4_are_said_as_they_are():
    by = defaultdict(dict)
    for run in QUESTION_4:
        if run["settings"].get("mini_batches") == 16:
            by[run["rule"], rate(run)][run["seed"]] = np.mean(run["accuracy"])
    grpo, faster, shear = (np.array([by[arm][s] for s in range(400, 404)]) for arm in EXPLORED)
    said = f"SHEAR at 7e-5 has {difference(shear - grpo)} over GRPO at 5e-5. GRPO at 7e-5 has the same "
    assert said + difference(faster - grpo) in TEXT and by.keys() == {*EXPLORED}


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
