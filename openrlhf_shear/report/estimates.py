"""Numbers with 95% intervals: estimates over problems, statistics over seeds, means of paired differences."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import nan, sqrt
from statistics import fmean, stdev
from typing import Self

import numpy as np

COVERAGE = 0.95  # of every interval
POWER = 0.8
FEW_PAIRS = 5  # fewer pairs get a warning: the interval means little
SAME = 1e-12  # a smaller spread of accuracies is rounding error

Form = str | Callable[[float], str]  # how to write a number: a format such as ".3f", or a function


class Interval:
    """The interface of a number in tables and pictures: `value`, `low` and `high`, each None where undefined."""

    @property
    def shown(self) -> tuple[float, float, float]:
        """Value, low and high as floats for plotting; NaN for None."""
        return tuple(nan if number is None else number for number in (self.value, self.low, self.high))

    def interval(self, form: Form = ".3f") -> str:
        """Return "0.100 to 0.200"; empty without an interval."""
        return "" if self.low is None else f"{written(self.low, form)} to {written(self.high, form)}"

    def text(self, form: Form = ".3f") -> str:
        """Return "0.150 (0.100 to 0.200)"; "0.150" without an interval, "-" without a value."""
        interval = self.interval(form)
        return written(self.value, form) + (f" ({interval})" if interval else "")


def written(value: float | None, form: Form) -> str:
    """Return a number as text; "-" for None."""
    if value is None:
        return "-"
    return format(value, form) if isinstance(form, str) else form(value)


@dataclass(frozen=True)
class Estimate(Interval):
    """A number of an analysis over rows of several problems."""

    value: float | None  # None where it is not defined; the warning says what it needs
    # low, high: the 95% interval; None without a value or with fewer than two problems
    low: float | None
    high: float | None
    # problems, rows: how many the value uses
    problems: int
    rows: int
    paper: float | None = None  # the paper's value; None if it gives none
    warning: str | None = None  # why the value or its interval says little; None if there is no objection
    # (R,) its value in each resample, NaN where undefined; for paired differences, and in no report
    draws: np.ndarray | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Stat(Interval):
    """Mean and sample standard deviation over n seeds, in the unit of the values; the interval is ±1 `std` if n > 1."""

    mean: float
    std: float | None
    n: int

    @property
    def value(self) -> float:
        return self.mean

    @property
    def low(self) -> float | None:
        return None if self.std is None else self.mean - self.std

    @property
    def high(self) -> float | None:
        return None if self.std is None else self.mean + self.std

    @property
    def percent(self) -> Self:
        """The same as percentages, from fractions."""
        return Stat(100 * self.mean, None if self.std is None else 100 * self.std, self.n)


def stat(values: Iterable[float]) -> Stat | None:
    """Return mean, sample standard deviation and number of the values; None without a value.

    >>> stat([1.0, 2.0, 3.0])
    Stat(mean=2.0, std=1.0, n=3)
    """
    values = list(values)
    return Stat(fmean(values), stdev(values) if len(values) > 1 else None, len(values)) if values else None


@dataclass(frozen=True)
class Paired(Interval):
    """The mean of n paired differences, with its interval and power."""

    mean: float
    # low, high: the 95% t interval; None with one pair
    low: float | None
    high: float | None
    seeds: int  # n, the number of pairs
    # the smallest true difference that the two-sided 5% paired t test finds with 80% power, for this n and this spread;
    # None with one pair
    detectable: float | None
    warning: str | None = None  # why the interval says little; None if there is no objection

    @property
    def value(self) -> float:
        return self.mean

    @property
    def half_width(self) -> float:
        """Half the width of the interval; 0 without an interval."""
        return 0.0 if self.low is None else (self.high - self.low) / 2


def paired(differences: Sequence[float]) -> Paired | None:
    """Return mean, interval and smallest detectable difference of (n,) finite differences; None without any.

    >>> gain = paired([0.01, 0.02, 0.03, 0.04, 0.05])
    >>> round(gain.mean, 3), round(gain.low, 4), round(gain.high, 4), round(gain.detectable, 4)
    (0.03, 0.0104, 0.0496, 0.0266)
    """
    values = np.asarray(differences, dtype=float)
    pairs = len(values)
    if not pairs:
        return None
    mean = float(values.mean())
    if pairs == 1:
        return Paired(mean, None, None, 1, None, "rests on one pair of seeds, which has no interval")
    spread = float(values.std(ddof=1))
    if spread <= SAME:
        return Paired(mean, mean, mean, pairs, 0.0, "all pairs differ alike, so the interval says nothing")
    error, (edge, noncentrality) = spread / sqrt(pairs), _t(pairs - 1)
    few = f"rests on {pairs} pairs of seeds, too few for an interval that means much" if pairs < FEW_PAIRS else None
    return Paired(mean, mean - edge * error, mean + edge * error, pairs, noncentrality * error, few)


@lru_cache
def _t(free: int) -> tuple[float, float]:
    """Return t_{0.975, free}, and the c with P(|T| > t_{0.975, free}) = 0.8.

    T is the noncentral t with `free` degrees of freedom and noncentrality c.
    """
    from scipy import optimize, stats  # late: they take a second

    edge = stats.t.ppf((1 + COVERAGE) / 2, free)

    def lacking(c: float) -> float:
        return stats.nct.sf(edge, free, c) + stats.nct.sf(edge, free, -c) - POWER

    return float(edge), optimize.brentq(lacking, 0, 2 * edge + 5)
