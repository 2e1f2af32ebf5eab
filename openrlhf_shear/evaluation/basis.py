"""What a score rests on, shown beside it: of 3 problems, all cut off at the limit, 0.0 is no result."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from openrlhf_shear.report.estimates import written
from openrlhf_shear.sampling.benchmarks import BENCHMARKS

TITLES = ("problems", "limit", "truncated", "no box")  # of the columns that `Basis` fills
NOTHING = {"math": "no_answer", "code": "no_code"}  # the grader's reason where there is no box, or no program
MOST_TRUNCATED = 0.5  # a note from here on


@dataclass(frozen=True)
class Basis:
    """Of one benchmark in one evaluation; None for what it does not say, as those of older versions."""

    problems: int | None = None
    limit: int | None = None  # tokens of a completion
    truncated: float | None = None  # completions that ended at it, of the graded ones
    no_answer: float | None = None  # of them, those without a box, or of programs, without one


def basis_of(row: Mapping, limit: int | None) -> Basis:
    """Of a benchmark's row of results.json."""
    nothing, graded = NOTHING.get(row.get("task")), row.get("graded")
    share = row.get("reasons", {}).get(nothing, 0) / graded if nothing and graded else None
    return Basis(row.get("problems"), limit, row.get("truncated_fraction"), share)


def cells(benchmark: str, bases: Sequence[Basis]) -> tuple[str, str, str, str]:
    """As a table shows them, of the same benchmark in one or more evaluations; shares are means over these.

    >>> cells("aime24", [Basis(3, 320, 1.0, 0.5)])
    ('3 of 30', '320', '100.0%', '50.0%')
    """
    size = BENCHMARKS[benchmark].size if benchmark in BENCHMARKS else None
    problems = _range(one.problems for one in bases)
    if size and any(one.problems is not None and one.problems < size for one in bases):
        problems += f" of {size}"
    truncated, no_answer = _mean(one.truncated for one in bases), _mean(one.no_answer for one in bases)
    return problems, _range(one.limit for one in bases), written(truncated, ".1%"), written(no_answer, ".1%")


def note(bases: Sequence[Basis]) -> str:
    """What a reader of the score alone would miss; "" for nothing."""
    share = _mean(one.truncated for one in bases)
    if share is None or share < MOST_TRUNCATED:
        return ""
    limit = _range(one.limit for one in bases)
    return f"{share:.1%} of the completions were cut off" + ("" if limit == "-" else f" at {limit} tokens")


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _range(values: Iterable[int | None]) -> str:
    known = sorted({value for value in values if value is not None})
    return " to ".join(map(str, dict.fromkeys((known[0], known[-1])))) if known else "-"
