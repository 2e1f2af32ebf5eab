"""A whole evaluation: completions and their scores, as results.json and a table.

results.json (docs/evaluation.md) holds no time and no date, and its sums are correctly rounded: the same completions
give the same bytes. Tokens, truncations and reasons count graded completions only.
"""

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from openrlhf_shear.data.writing import write_text
from openrlhf_shear.evaluation.estimators import (
    TITLES,
    ProblemMean,
    avg_at_k,
    basis_of,
    cells,
    maj_at_k,
    note,
    pass_at_k,
)
from openrlhf_shear.report.tables import Table, print_tables
from openrlhf_shear.rewards.graders import GRADERS
from openrlhf_shear.rewards.settings import GradingConfig
from openrlhf_shear.rewards.verdict import Failure, Reason, Verdict
from openrlhf_shear.sampling.plan import Plan, complete, graded_anew
from openrlhf_shear.sampling.records import Completion, Question
from openrlhf_shear.sampling.sampler import Starter
from openrlhf_shear.sampling.store import Store, latest

HEADER = ("benchmark", "avg@k", "k", *TITLES, "failed", "pass@k", "maj@k", "lenient", "tokens", "time-outs")


def results(
    questions: Mapping[tuple[str, str], Question],
    completions: Iterable[Completion],
    tasks: Mapping[str, str],
    ks: Mapping[str, int],
) -> dict:
    """Return the content of results.json.

    Args:
        tasks: benchmark -> its grader, in the order of the results.
        ks: benchmark -> samples a problem.
    """
    samples: dict[tuple[str, str], list[Completion]] = {key: [] for key in questions}
    for completion in completions:
        samples[completion.benchmark, completion.question].append(completion)
    rows = {}
    for benchmark, task in tasks.items():
        problems = [of for key, of in samples.items() if key[0] == benchmark]
        rows[benchmark] = _benchmark(task, ks[benchmark], problems)
    scores = {Path(task).stem: [rows[b][f"avg@{ks[b]}"] for b in tasks if tasks[b] == task] for task in tasks.values()}
    return {
        "benchmarks": rows,
        "average": {task: None if None in mine else statistics.fmean(mine) for task, mine in scores.items()},
    }


def write_results(scores: dict, path: str | Path) -> None:
    """Write results.json, atomically."""
    write_text(Path(path), json.dumps(scores, indent=1, allow_nan=False) + "\n")


def print_table(scores: dict) -> None:
    """Print a row for each benchmark to stdout; scores in percent."""
    limit, averages = scores.get("max_new_tokens"), scores["average"]
    rows = [(benchmark, *_cells(benchmark, row, limit)) for benchmark, row in scores["benchmarks"].items()]
    rows += [
        ("average" if len(averages) == 1 else f"average, {task}", _percent(value)) for task, value in averages.items()
    ]
    notes = [line for benchmark, row in scores["benchmarks"].items() for line in _notes(benchmark, row, limit)]
    print_tables([Table("", HEADER, rows, notes, sections={len(scores["benchmarks"]): ""})])


def _notes(benchmark: str, row: dict, limit: int | None) -> list[str]:
    notes = list(filter(None, [note([basis_of(row, limit)])]))
    notes += [f"{count} completions failed: {what}" for what, count in row["failed"].items()]
    if row["missing"]:
        notes.append(f"{row['missing']} completions are missing")
    if row["left_out_problems"]:
        notes.append(f"{row['left_out_problems']} problems have no graded completion and are left out")
    for name, problems in row["too_few_samples"].items():
        notes.append(f"{problems} problems have too few graded completions for {name} and are left out of it")
    return [f"{benchmark}: {line}" for line in notes]


def _benchmark(task: str, k: int, problems: list[list[Completion]]) -> dict:
    """Return the row of a benchmark; `problems` are the completions of each problem."""
    everything = [completion for of in problems for completion in of]
    without = Verdict(None, failure=Failure.NOT_GRADED)
    verdicts = [[completion.verdict or without for completion in of] for of in problems]
    graded = [c for c in everything if c.verdict is not None and c.verdict.correct is not None]
    outcomes = [[verdict.correct for verdict in of] for of in verdicts]
    average = avg_at_k(outcomes)
    some = sorted({*(2**power for power in range(k.bit_length())), k})  # 1, 2, 4, ... up to k, and k
    estimates: dict[str, ProblemMean] = {f"pass@{each}": pass_at_k(outcomes, each) for each in some}
    grader = GRADERS.get(task)
    if grader and grader.has_answer and k > 1:
        estimates[f"maj@{k}"] = maj_at_k([[(verdict.answer, verdict.correct) for verdict in of] for of in verdicts])
    if grader and grader.lenient:
        estimates[f"lenient_avg@{k}"] = avg_at_k([[verdict.lenient for verdict in of] for of in verdicts])
    failed = Counter(v.why or "no reason given" for of in verdicts for v in of if v.correct is None)
    reasons = Counter(c.verdict.why or "no reason given" for c in graded if not c.verdict.correct)
    truncated = sum(completion.truncated for completion in graded)
    return {
        "task": task,
        "problems": len(problems),
        "k": k,
        "completions": len(everything),
        "missing": k * len(problems) - len(everything),
        "graded": len(graded),
        "failed": dict(sorted(failed.items())),
        "left_out_problems": average.left_out,
        f"avg@{k}": average.value,
        "stderr": average.stderr,
        **{name: estimate.value for name, estimate in estimates.items()},
        "too_few_samples": {
            name: estimate.left_out - average.left_out
            for name, estimate in estimates.items()
            if estimate.left_out > average.left_out
        },
        "response_tokens_mean": statistics.fmean([c.tokens for c in graded]) if graded else None,
        "truncated": truncated,
        "truncated_fraction": truncated / len(graded) if graded else None,
        "timeouts": reasons[Reason.TIMEOUT],
        "reasons": dict(sorted(reasons.items())),
    }


def _cells(benchmark: str, row: dict, limit: int | None) -> list:
    k = row["k"]
    average, *scores = (_percent(row.get(name)) for name in (f"avg@{k}", f"pass@{k}", f"maj@{k}", f"lenient_avg@{k}"))
    average += "" if row["stderr"] is None else f" ± {_percent(row['stderr'])}"
    tokens = "" if row["response_tokens_mean"] is None else f"{row['response_tokens_mean']:.0f}"
    rests_on = cells(benchmark, [basis_of(row, limit)])
    return [average, k, *rests_on, sum(row["failed"].values()), *scores, tokens, row["timeouts"]]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def evaluate(plan: Plan, store: Store, engines: Starter, grading: GradingConfig, progress: bool = True) -> dict:
    """Run the plan (`plan.complete`, with its errors) and write results.json; return `results`."""
    return score(store, complete(plan, store, engines, grading, progress))


def regrade(store: Store, grading: GradingConfig, progress: bool = True) -> dict:
    """Grade a folder's completions again and rewrite its generations.jsonl and results.json; needs no model.

    Raises:
        ValueError: the folder holds no evaluation.
        JailError: no jail works on this machine.
    """
    if not (store.folder / "settings.json").is_file():
        raise ValueError(f"--regrade must be the folder of an evaluation: got {store.folder}")
    # A failed completion may have been sampled since, by a run that was interrupted before it graded.
    completions = latest([*store.generations(), *store.samples()])
    return score(store, graded_anew(store, completions, grading, progress, again=True))


def score(store: Store, completions: Iterable[Completion]) -> dict:
    """Write and return the results of a folder's graded completions (results.json)."""
    settings = store.settings()
    scores = {"model": settings["model"], "max_new_tokens": settings.get("max_new_tokens")}
    scores |= results(store.questions(), completions, settings["tasks"], settings["k"])
    write_results(scores, store.folder / "results.json")
    return scores
