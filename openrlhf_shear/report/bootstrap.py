"""Quantities that analyses declare, and their estimates with bootstrap intervals; comparisons over paired seeds.

Intervals are percentile bootstraps over *problems*. A resample draws problems with replacement and keeps all rows of a
problem together, since rows of one problem resemble each other. A resample is the number of times each problem was
drawn, so a statistic is a function of problem weights. (`scipy.stats.bootstrap` cannot share resamples between vectors
of statistics, and gives no interval once a resample has no value. The tests compare with it where it has an interval.)

A percentile interval is as biased as its statistic: a rank correlation of noisy means lies nearer 0 in resamples.

Legend: P problems, V values of one quantity or of all, R resamples.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from openrlhf_shear.report.estimates import COVERAGE, FEW_PAIRS, Estimate

FEW_PROBLEMS = 10  # fewer problems get a warning: the interval means little
UNDEFINED = 0.05  # largest fraction of resamples without a value that gets no warning
WIDE = 0.5  # largest width of an interval that gets no warning, as a fraction of all possible values


@dataclass(frozen=True)
class Quantity:
    """A number of an analysis, or V numbers of one kind."""

    name: str  # key of its entry in the analysis
    # maps (P,) problem weights, or the result of `shared` in `Bootstrap.estimates`, to a number or (V,); NaN where
    # undefined. None counts the rows: a number without an interval
    statistic: Callable[[Any], float | np.ndarray] | None
    rows: np.ndarray  # (P,) or (P, V): how many rows of each problem it uses
    needs: str = "a row"  # what makes it defined, for the warning: "two different distances"
    span: float | None = None  # largest minus smallest possible value; None if there is no bound
    paper: float | Sequence[float | None] | None = None  # the paper's value; a list for V values
    # its title in a report's table, None to leave it out; a list for V values
    what: str | Sequence[str | None] | None = None
    caution: str | None = None  # a further warning, shown wherever there is a value

    @property
    def columns(self) -> np.ndarray:
        """The rows as (P, V)."""
        rows = np.asarray(self.rows)
        return rows[:, None] if rows.ndim == 1 else rows

    def of_each(self, entry: object) -> list:
        """Return `paper` or `what` for each of the V values."""
        return list(entry) if isinstance(entry, list | tuple) else [entry] * self.columns.shape[1]


class Analysis(dict):
    """The result of an analysis or of a part of it: entries by name, in JSON order, also readable as attributes.

    Attributes:
        numbers: the estimates of a report's table by title, in order.
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
    """Return one analysis for each row of equally long columns."""
    return [Analysis(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def ends(first: object, last: object, values: int) -> list:
    """Return `paper` or `what` for V values: of the first and the last only; all None for a single value."""
    return [first, *[None] * (values - 2), last] if values > 1 else [None] * values


def smaller(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the (P,) rows of what fewer problems have: a difference or a ratio says no more than this side of it."""
    return min(first, second, key=lambda rows: (np.count_nonzero(rows), rows.sum()))


@dataclass(frozen=True)
class Bootstrap:
    """Settings of the intervals; the same seed draws the same problems in every analysis with as many problems."""

    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.resamples < 1:
            raise ValueError(f"resamples must be at least 1: got {self.resamples}; use e.g. 1000")

    def draws(self, problems: int) -> Iterator[np.ndarray]:
        """Return R arrays of (P,): how often each problem is drawn."""
        rng = np.random.default_rng(self.seed)
        return iter(rng.multinomial(problems, np.full(problems, 1 / problems), size=self.resamples).astype(float))

    def estimates(
        self, quantities: Sequence[Quantity], shared: Callable[[np.ndarray], Any] = lambda weights: weights
    ) -> Analysis:
        """Return the estimate of each quantity by name, or a list of V estimates where its rows are (P, V).

        Args:
            quantities: all over the same P problems.
            shared: maps (P,) problem weights to the input of every statistic; called once a resample.
        """
        rows = np.hstack([quantity.columns for quantity in quantities])
        problems, number = rows.shape

        def statistics(weights: np.ndarray) -> np.ndarray:
            of = shared(weights)
            values = [q.statistic(of) if q.statistic else np.full(q.columns.shape[1], np.nan) for q in quantities]
            return np.concatenate([np.atleast_1d(value) for value in values], dtype=float)

        values, drawn = np.full(number, np.nan), np.full((0, number), np.nan)
        if problems and rows.any():
            values = statistics(np.ones(problems))
        if problems > 1 and np.isfinite(values).any():
            drawn = np.array([statistics(weights) for weights in self.draws(problems)])
        analysis, first = Analysis(), 0
        for quantity in quantities:
            papers, titles = quantity.of_each(quantity.paper), quantity.of_each(quantity.what)
            columns = enumerate(papers, first)
            each = [_estimate(quantity, values[v], drawn[:, v], rows[:, v], paper) for v, paper in columns]
            first += len(each)
            analysis[quantity.name] = each if np.ndim(quantity.rows) > 1 else each[0]
            analysis.numbers |= {title: estimate for title, estimate in zip(titles, each, strict=True) if title}
        return analysis


def _estimate(quantity: Quantity, value: float, drawn: np.ndarray, rows: np.ndarray, paper: float | None) -> Estimate:
    problems, total = int((rows > 0).sum()), int(rows.sum())
    if quantity.statistic is None:
        return Estimate(total, None, None, problems, total, paper)
    if not np.isfinite(value):
        return Estimate(None, None, None, problems, total, paper, f"not defined: it needs {quantity.needs}")
    finite, warnings = drawn[np.isfinite(drawn)], []
    low, high = interval(finite) if problems > 1 and len(finite) else (None, None)
    if problems < FEW_PROBLEMS:
        of = "one problem" if problems == 1 else f"{problems} problems"
        warnings.append(f"rests on {of}, too few for an interval that means anything")
    lost = 1 - len(finite) / len(drawn) if len(drawn) else 0.0
    if lost > UNDEFINED:
        warnings.append(f"not defined in {lost:.0%} of the resamples, since few problems have {quantity.needs}")
    if quantity.span and low is not None and high - low > WIDE * quantity.span:
        warnings.append("the interval covers more than half of what is possible, so the sample says nothing")
    if quantity.caution:
        warnings.append(quantity.caution)
    return Estimate(float(value), low, high, problems, total, paper, "; ".join(warnings) or None, drawn)


def difference(first: Estimate, second: Estimate) -> Estimate:
    """Return first - second with a paired interval: both take the same resample of the problems, one by one.

    Both must come from one `Bootstrap`, over the same problems in the same order. The warnings are those of both.
    """
    problems, rows = min(first.problems, second.problems), min(first.rows, second.rows)
    warnings = dict.fromkeys(each.warning for each in (first, second) if each.warning)
    about = problems, rows, None, "; ".join(warnings) or None
    if first.value is None or second.value is None:
        return Estimate(None, None, None, *about)
    drawn = None if first.draws is None or second.draws is None else first.draws - second.draws
    finite = [] if drawn is None else drawn[np.isfinite(drawn)]
    paired = first.low is not None and second.low is not None and len(finite)
    return Estimate(first.value - second.value, *(interval(finite) if paired else (None, None)), *about, drawn)


def interval(drawn: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the percentile interval of a statistic's draws, which are finite."""
    low, high = np.quantile(drawn, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return float(low), float(high)


def iqm(scores: Sequence[float], bootstrap: Bootstrap) -> Estimate:
    """Return the interquartile mean of (n,) scores, one a seed: their mean without the n // 4 lowest and highest.

    It is that of rliable (Agarwal et al. 2021, arXiv 2108.13264), as is `probability_of_improvement`.
    """
    from scipy.stats import trim_mean  # late: it takes a second

    values = np.asarray(scores, dtype=float)
    return _over_seeds(len(values), lambda drawn: trim_mean(values[drawn], 0.25), bootstrap)


def probability_of_improvement(scores: Sequence[float], others: Sequence[float], bootstrap: Bootstrap) -> Estimate:
    """Return the chance that a run of the rule beats a run of the other, whatever their seeds; ties count half.

    >>> probability_of_improvement([3.0, 1.0], [1.0, 2.0], Bootstrap(10)).value
    0.625

    Args:
        scores, others: (n,), of the same seeds in the same order.
    """
    mine, its = np.asarray(scores, dtype=float), np.asarray(others, dtype=float)
    if mine.shape != its.shape:
        raise ValueError(f"scores must be pairs: got {len(mine)} and {len(its)}")
    won = (mine[:, None] > its) + 0.5 * (mine[:, None] == its)
    return _over_seeds(len(mine), lambda drawn: won[np.ix_(drawn, drawn)].mean(), bootstrap)


def _over_seeds(seeds: int, statistic: Callable[[np.ndarray], float], bootstrap: Bootstrap) -> Estimate:
    """Return the statistic of all seeds, given by their indices, with its interval over resampled seeds."""
    if not seeds:
        return Estimate(None, None, None, 0, 0, warning="not defined: it needs a seed")
    every = np.arange(seeds)
    low = high = None
    if seeds > 1:
        drawn = [statistic(np.repeat(every, counts.astype(int))) for counts in bootstrap.draws(seeds)]
        low, high = interval(drawn)
    few = f"rests on {seeds} seeds, too few for an interval that means much" if seeds < FEW_PAIRS else None
    return Estimate(float(statistic(every)), low, high, seeds, seeds, warning=few)


def holm(ps: Sequence[float], planned: int) -> list[float]:
    """Return Holm's (1979) corrected p values of some of `planned` tests; missing tests count as p = 1.

    >>> holm([0.01, 0.04, 0.03], 3)
    [0.03, 0.06, 0.06]
    """
    order, largest, corrected = sorted(range(len(ps)), key=lambda i: ps[i]), 0.0, [0.0] * len(ps)
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (planned - rank) * ps[i]))
        corrected[i] = largest
    return corrected
