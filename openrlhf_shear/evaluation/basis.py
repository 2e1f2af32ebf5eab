"""The basis of a score, shown beside it: 0.0 on 3 problems, all cut off at the limit, is no result."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from openrlhf_shear.report.estimates import written
from openrlhf_shear.rewards.graders import GRADERS
from openrlhf_shear.sampling.benchmarks import BENCHMARKS

TITLES = ("problems", "limit", "truncated", "no box")  # of the columns for a `Basis`
MOST_TRUNCATED = 0.5  # a larger share, or an equal one, gets a note


@dataclass(frozen=True)
class Basis:
    """The basis of a benchmark's score in an evaluation; None for unknown values."""

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
