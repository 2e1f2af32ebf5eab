"""What analyses estimate, as they declare it, and its estimates with their intervals.

Intervals are percentile bootstraps over *problems*: problems are drawn with replacement and all rows of a problem come
along, since rows of one problem resemble each other. A resample is the number of times each problem was drawn, so a
statistic is a function of problem weights. (`scipy.stats.bootstrap` has no vectors of statistics that share their
resamples, and gives no interval once a resample has no value; the tests compare with it where it has one.)

A percentile interval is as biased as its statistic: a rank correlation of noisy means lies nearer 0 in resamples.

Legend: P problems, V values of a quantity or of all, R resamples.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from openrlhf_shear.report.estimates import COVERAGE, Estimate

FEW_PROBLEMS = 10  # fewer give no interval worth the name
UNDEFINED = 0.05  # of the resamples, at most
WIDE = 0.5  # of all values that are possible, at most


@dataclass(frozen=True)
class Quantity:
    """A number of an analysis, or V numbers of one kind."""

    name: str  # of its entry in the analysis
    # of (P,) problem weights, or of what `Bootstrap.estimates` makes of them once for all quantities: a number or (V,),
    # NaN where it is not defined. None for the number of rows, which has no interval
    statistic: Callable[[Any], float | np.ndarray] | None
    rows: np.ndarray  # (P,) or (P, V) rows of each problem that it rests on
    needs: str = "a row"  # what it must have to be defined, for the warning: "two different distances"
    span: float | None = None  # largest minus smallest value that is possible; None if there is no bound
    paper: float | Sequence[float | None] | None = None  # the paper's value; a list of V has one each
    # its title in a report's table, where that shows it; a list of V has one each
    what: str | Sequence[str | None] | None = None
    caution: str | None = None  # a warning beside those of every estimate, where there is a value

    @property
    def columns(self) -> np.ndarray:
        """(P, V) the rows."""
        rows = np.asarray(self.rows)
        return rows[:, None] if rows.ndim == 1 else rows

    def of_each(self, given: object) -> list:
        """`paper` or `what` of each of the V values."""
        return list(given) if isinstance(given, list | tuple) else [given] * self.columns.shape[1]


class Analysis(dict):
    """What an analysis, or a part of one, came to: by name, in the order of its JSON, and as attributes.

    Attributes:
        numbers: the estimates of a report's table by their titles, in its order.
        table: rows for pictures, not written as JSON.
    """

    def __init__(self, entries: Mapping | Iterable = (), numbers: Mapping[str, Estimate] | None = None, table=None):
        super().__init__(entries)
        self.numbers, self.table = dict(numbers or {}), table

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"the analysis has {', '.join(self)}; not {name}")
        return self[name]


def parts(**columns: Iterable) -> list[Analysis]:
    """One a row of equally long columns."""
    return [Analysis(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def ends(first: object, last: object, values: int) -> list:
    """`paper` or `what` of the first and the last of V values; without both of them, of none."""
    return [first, *[None] * (values - 2), last] if values > 1 else [None] * values


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are made; the same seed draws the same problems in every analysis of as many problems."""

    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.resamples < 1:
            raise ValueError(f"resamples must be at least 1: got {self.resamples}; use e.g. 1000")

    def draws(self, problems: int) -> Iterator[np.ndarray]:
        """R times (P,): how often each problem is drawn."""
        rng = np.random.default_rng(self.seed)
        return iter(rng.multinomial(problems, np.full(problems, 1 / problems), size=self.resamples).astype(float))

    def estimates(
        self, quantities: Sequence[Quantity], shared: Callable[[np.ndarray], Any] = lambda weights: weights
    ) -> Analysis:
        """The estimate of each quantity by its name; a list of V for one whose rows are (P, V).

        Args:
            quantities: of the same P problems.
            shared: makes what the statistics take of (P,) problem weights, once a resample.
        """
        rows = np.hstack([quantity.columns for quantity in quantities])
        problems, number = rows.shape

        def statistics(weights: np.ndarray) -> np.ndarray:
            of = shared(weights)
            values = [q.statistic(of) if q.statistic else np.full(q.columns.shape[1], np.nan) for q in quantities]
            return np.concatenate([np.atleast_1d(one) for one in values], dtype=float)

        values, drawn = np.full(number, np.nan), np.full((0, number), np.nan)
        if problems and rows.any():
            values = statistics(np.ones(problems))
        if problems > 1 and np.isfinite(values).any():
            drawn = np.array([statistics(weights) for weights in self.draws(problems)])
        made, first = Analysis(), 0
        for quantity in quantities:
            papers, titles = quantity.of_each(quantity.paper), quantity.of_each(quantity.what)
            columns = enumerate(papers, first)
            each = [_estimate(quantity, values[v], drawn[:, v], rows[:, v], paper) for v, paper in columns]
            first += len(each)
            made[quantity.name] = each if np.ndim(quantity.rows) > 1 else each[0]
            made.numbers |= {title: one for title, one in zip(titles, each, strict=True) if title}
        return made


def _estimate(quantity: Quantity, value: float, drawn: np.ndarray, rows: np.ndarray, paper: float | None) -> Estimate:
    problems, total = int((rows > 0).sum()), int(rows.sum())
    if quantity.statistic is None:
        return Estimate(total, None, None, problems, total, paper)
    if not np.isfinite(value):
        return Estimate(None, None, None, problems, total, paper, f"not defined: it needs {quantity.needs}")
    kept, warnings = drawn[np.isfinite(drawn)], []
    low, high = None, None
    if problems > 1 and len(kept):
        low, high = (float(end) for end in np.quantile(kept, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2]))
    if problems < FEW_PROBLEMS:
        of = "one problem" if problems == 1 else f"{problems} problems"
        warnings.append(f"rests on {of}, too few for an interval that means anything")
    lost = 1 - len(kept) / len(drawn) if len(drawn) else 0.0
    if lost > UNDEFINED:
        warnings.append(f"not defined in {lost:.0%} of the resamples, since few problems have {quantity.needs}")
    if quantity.span and low is not None and high - low > WIDE * quantity.span:
        warnings.append("the interval covers more than half of what is possible, so the sample says nothing")
    if quantity.caution:
        warnings.append(quantity.caution)
    return Estimate(float(value), low, high, problems, total, paper, "; ".join(warnings) or None)
