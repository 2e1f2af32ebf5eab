"""Scores of a benchmark from the verdicts of k samples a problem: avg@k, pass@k, maj@k, and their standard errors.

`None` stands for a sample without a grade: its grader or the model's engine failed. It is left out, not counted as
wrong. A problem with too few graded samples is left out too; `Estimate.left_out` counts such problems.

    n_i  graded samples of problem i        c_i  the correct ones of them        N  problems that are not left out

Sums are correctly rounded (`statistics`), so scores do not depend on the machine or the order of the samples.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import fmean

from openrlhf_shear.report.estimates import written
from openrlhf_shear.rewards.graders import GRADERS
from openrlhf_shear.rewards.maths.text import squeeze, tidy
from openrlhf_shear.sampling.benchmarks import BENCHMARKS


@dataclass(frozen=True)
class ProblemMean:
    """A mean over problems."""

    value: float | None  # in [0, 1]; None if every problem is left out
    # standard error over problems: sample std of the problems' values / sqrt(N); None below two problems
    stderr: float | None
    problems: int  # N
    left_out: int  # the other problems


def avg_at_k(outcomes: Iterable[Sequence[bool | None]]) -> ProblemMean:
    r"""avg@k = 1/N \sum_i c_i / n_i: the expected score of one sample.

    Its standard error over problems follows Miller, "Adding Error Bars to Evals" (arXiv:2411.00640); a problem is a
    cluster of its samples.
    """
    return _over_problems([statistics.fmean(graded) if graded else None for graded in map(_graded, outcomes)])


def pass_at_k(outcomes: Iterable[Sequence[bool | None]], k: int) -> ProblemMean:
    r"""pass@k = 1/N \sum_i [1 - C(n_i - c_i, k) / C(n_i, k)]: the chance that one of k samples is correct, unbiased.

    Chen et al., "Evaluating Large Language Models Trained on Code" (arXiv:2107.03374), equation 1. Their product form
    serves floats; Python's integers give the ratio exactly. A problem with n_i < k is left out.
    """
    return _over_problems([_pass(len(graded), sum(graded), k) for graded in map(_graded, outcomes)])


def maj_at_k(votes: Iterable[Sequence[tuple[str | None, bool | None]]]) -> ProblemMean:
    """maj@k: is the most frequent answer to a problem correct? Self-consistency (arXiv:2203.11171).

    Args:
        votes: of each problem, (answer, correct) of its samples. Answers are equal if their tidy texts are
            (`maths.text`). A graded sample without an answer casts no vote; a sample without a grade is left out.

    A problem's value is the correctness of its most frequent answer, or the mean over that answer's samples should they
    differ. In a tie the value is the mean over the tied answers, the expected value of drawing among them. Without any
    vote it is 0.
    """
    graded = [[(answer, correct) for answer, correct in samples if correct is not None] for samples in votes]
    return _over_problems([_majority(samples) if samples else None for samples in graded])


def _graded(samples: Sequence[bool | None]) -> list[bool]:
    return [correct for correct in samples if correct is not None]


def _pass(n: int, c: int, k: int) -> float | None:
    return (comb(n, k) - comb(n - c, k)) / comb(n, k) if n >= k else None


def _majority(samples: list[tuple[str | None, bool]]) -> float:
    members: dict[str, list[bool]] = defaultdict(list)
    for answer, correct in samples:
        if answer is not None and (text := squeeze(tidy(answer))):
            members[text].append(correct)
    most = max(map(len, members.values()), default=0)
    return statistics.fmean([statistics.fmean(m) for m in members.values() if len(m) == most]) if most else 0.0


def _over_problems(values: list[float | None]) -> ProblemMean:
    known = [value for value in values if value is not None]
    mean = statistics.fmean(known) if known else None
    stderr = statistics.stdev(known) / sqrt(len(known)) if len(known) > 1 else None
    return ProblemMean(mean, stderr, len(known), len(values) - len(known))


TITLES = ("problems", "limit", "truncated", "no box")  # of the columns for a `Basis`
MOST_TRUNCATED = 0.5  # a larger share, or an equal one, gets a note


@dataclass(frozen=True)
class Basis:
    """The basis of a benchmark's score, shown beside it; None for unknown values.

    A score of 0.0 on 3 problems, all cut off at the limit, is no result.
    """

    problems: int | None = None
    limit: int | None = None  # tokens of a completion
    truncated: float | None = None  # fraction of the graded completions that ended at the limit
    no_answer: float | None = None  # fraction of the graded completions without a box (of code: without a program)


def basis_of(row: Mapping, limit: int | None) -> Basis:
    """Return the basis of a benchmark's row in results.json."""
    grader, graded = GRADERS.get(row.get("task")), row.get("graded")
    share = row.get("reasons", {}).get(grader.nothing, 0) / graded if grader and graded else None
    return Basis(row.get("problems"), limit, row.get("truncated_fraction"), share)


def cells(benchmark: str, bases: Sequence[Basis]) -> tuple[str, str, str, str]:
    """Return a table's cells for a benchmark in one or more evaluations; shares are means over the evaluations.

    >>> cells("aime24", [Basis(3, 320, 1.0, 0.5)])
    ('3 of 30', '320', '100.0%', '50.0%')
    """
    size = BENCHMARKS[benchmark].size if benchmark in BENCHMARKS else None
    problems = _range(basis.problems for basis in bases)
    if size and any(basis.problems is not None and basis.problems < size for basis in bases):
        problems += f" of {size}"
    truncated, no_answer = _mean(basis.truncated for basis in bases), _mean(basis.no_answer for basis in bases)
    return problems, _range(basis.limit for basis in bases), written(truncated, ".1%"), written(no_answer, ".1%")


def note(bases: Sequence[Basis]) -> str:
    """Return a warning about the score for its reader; "" without one."""
    share = _mean(basis.truncated for basis in bases)
    if share is None or share < MOST_TRUNCATED:
        return ""
    return f"{share:.1%} of the completions were cut off at {_range(basis.limit for basis in bases)} tokens"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _range(values: Iterable[int | None]) -> str:
    known = sorted({value for value in values if value is not None})
    return " to ".join(map(str, dict.fromkeys((known[0], known[-1])))) if known else "-"
