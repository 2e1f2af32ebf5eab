"""The planned difference of each question of docs/credit-questions.md, from the lab's finished runs.

    examples/scripts/credit_bench.sh         # ARMS="q2 q1": trains the runs and calls this: PYTHONPATH=. python ...

Each rule has its best learning rate on the tuning seeds. Differences are of the mean of the evaluations, of the last
evaluation, of the best one, and of the mean accuracy of the training steps. They are paired over seeds, with 95%
intervals (t). p is that of the two-sided paired t test. A question with missing seeds is interim,
with no conclusion.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ledger_comparison import JUDGED, points
from measure import print_table, script_parser, write_json
from scipy.stats import ttest_1samp

from openrlhf_shear.config.names import titled
from openrlhf_shear.lab.policy import fingerprint, start_policy
from openrlhf_shear.lab.runs import finished, jobs
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.trials import Trials
from openrlhf_shear.lab.tuning import tuned
from openrlhf_shear.lab.variants import parse_rules
from openrlhf_shear.lab.worth import LabRun
from openrlhf_shear.report.bootstrap import Bootstrap
from openrlhf_shear.report.comparisons import iqm, probability_of_improvement
from openrlhf_shear.report.estimates import paired
from openrlhf_shear.report.findings import plain
from openrlhf_shear.report.provenance import distinct, provenance

TEXT = "examples.rules.text_odds:TextOddsRule/surprisal=4/entropy=0/reach=32/epsilon_rel=0.015/rise=6"
SETTINGS = {"prompts": 8, "window": 32, "stride": 8, "epsilon_rel": 0.015}
SETTINGS |= {"eval_every": 5, "eval_temperature": 0.1, "eval_problems": 128, "eval_samples": 1}
SEEDS = range(200, 224)
TRIALS = Trials(seeds=0, learning_rates="1e-4,2e-4,4e-4", first_tuning_seed=920, widen_rates=4)
POINT = 0.01
MEASURES: dict[str, Callable[[LabRun], float]] = {
    "evaluated": lambda run: run.evaluated,
    "final": lambda run: run.final,
    "best": lambda run: max(run.evaluations),
    "steps": lambda run: run.mean,  # not planned: evaluations may be near 1 for all rules
}
COLUMNS = {
    "rule": "rule",
    "seeds": "seeds",
    "evaluated": "evaluations",
    "final": "last",
    "best": "best",
    "steps": "steps",
}
ROBUST = {"rule": "rule", "iqm": "IQM", "improvement": "improves", "p": "p"}


def first_answer(low: float, high: float) -> str:
    """Read the decision table of question 1, for the interval of the difference."""
    if low > 0:
        return "SHEAR gains here, by as much as the interval says; the first comparison's conclusion is overturned"
    if high < 0:
        return "SHEAR loses here, by as much as the interval says"
    return "SHEAR is worth less than a point here" if high < POINT else "undecided"


def second_answer(low: float, high: float) -> str:
    """Read the decision table of question 2, for the interval of the difference."""
    if low > 0:
        return "hidden states add something that words do not, on this task"
    if low >= -POINT and high <= POINT:
        return "words suffice, on this task"
    return "words are better, on this task" if high < 0 else "undecided"


@dataclass(frozen=True)
class Question:
    """A plan: a rule over the baseline, on a task."""

    task: str
    steps: int
    baseline: str
    rule: str
    answer: Callable[[float, float], str]

    @property
    def settings(self) -> LabSettings:
        return LabSettings(task=self.task, steps=self.steps, **SETTINGS)


QUESTIONS = {
    1: Question("bookkeeping-paraphrased", 60, "uniform", "shear", first_answer),
    2: Question("bookkeeping", 20, TEXT, JUDGED, second_answer),
}


def answer_to(question: Question, folder: Path) -> dict:
    """Return a question's rates, difference and conclusion, as JSON values; no difference while seeds are missing.

    Args:
        folder: the lab's --output.

    Raises:
        ValueError: the tuning lacks runs.
    """
    settings = question.settings
    start = start_policy(settings)
    variants = parse_rules(f"{question.baseline},{question.rule}")
    identity = fingerprint(start)
    rates = tuned(TRIALS, settings, variants, start, identity, folder, train=False)
    wanted = jobs(settings, variants, SEEDS, start, identity, folder, rates)
    runs = [run for run in finished(wanted) if run.seed in SEEDS]
    by = {variant.name: {run.seed: run for run in runs if run.rule == variant.name} for variant in variants}
    baseline, rule = by
    result = {"settings": settings.of_a_run(), "over": baseline, "rates": rates, "difference": None}
    done, wanted = sum(map(len, by.values())), len(SEEDS) * len(by)
    if done < wanted:
        return result | {"conclusion": f"interim: {done} of {wanted} runs"}
    row = _row(rule, by[rule], by[baseline], (rates[rule], rates[baseline]))
    return result | {
        "means": {name: sum(run.evaluated for run in its.values()) / len(its) for name, its in by.items()},
        "runs": distinct(run.made for run in runs),
        "difference": row,
        "conclusion": question.answer(row["evaluated"]["low"], row["evaluated"]["high"]),
    }


def _row(name: str, mine: dict[int, LabRun], its: dict[int, LabRun], rates: tuple[float, float]) -> dict:
    """Return a rule's differences over the seeds."""
    seeds = sorted(mine)
    of = {measure: [(value(mine[seed]), value(its[seed])) for seed in seeds] for measure, value in MEASURES.items()}
    differences = {measure: [rule - other for rule, other in pairs] for measure, pairs in of.items()}
    scores, bootstrap = zip(*of["evaluated"], strict=True), Bootstrap()
    return {
        "rule": name,
        "rates": rates,
        "seeds": len(seeds),
        **{measure: plain(paired(values)) for measure, values in differences.items()},
        "iqm": plain(iqm(differences["evaluated"], bootstrap)),
        "improvement": plain(probability_of_improvement(*scores, bootstrap)),
        "p": float(ttest_1samp(differences["evaluated"], 0.0).pvalue),
        "by_seed": dict(zip(seeds, differences["evaluated"], strict=True)),
    }


def _shown(row: dict) -> dict:
    (name,) = titled((row["rule"],))
    iqm = points(row["iqm"] | {"mean": row["iqm"]["value"]})
    improvement = "{value:.2f} ({low:.2f} to {high:.2f})".format(**row["improvement"])
    shown = {"rule": name, "iqm": iqm, "improvement": improvement}
    return row | shown | {measure: points(row[measure]) for measure in MEASURES}


def main() -> None:
    parser = script_parser(__doc__, required=True)
    parser.add_argument("--runs", type=Path, required=True, help="the lab's --output")
    args = parser.parse_args()
    if not (args.runs / "runs").is_dir():
        parser.error(f"--runs: no runs of the lab in {args.runs}; give the lab's --output, which has a folder runs")
    found = {}
    for number, question in QUESTIONS.items():
        try:
            found[f"{number}"] = answer_to(question, args.runs)
        except ValueError as error:
            again = f"ARMS=q{number} examples/scripts/credit_bench.sh trains what is missing"
            why, _, _ = str(error).partition(", which --seeds 0")
            print(f"Question {number} stays as it is in {args.output}: {why} ({again})")
            continue
        its = found[f"{number}"]
        if its["difference"]:
            (over,), rows = titled((its["over"],)), [_shown(its["difference"])]
            print_table(f"Question {number}, points over {over}", rows, COLUMNS)
            print_table("Of the evaluations", rows, ROBUST)
        print(f"Question {number}: {its['conclusion']}")
    if not found:
        raise SystemExit(f"no question has all runs of its tuning in {args.runs}: nothing is written")
    earlier = json.loads(args.output.read_text())["questions"] if args.output.is_file() else {}
    write_json(args.output, {**provenance(), "questions": earlier | found})


if __name__ == "__main__":
    main()
