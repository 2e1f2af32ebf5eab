"""Numbers with 95% intervals: estimates over problems, statistics over seeds, means of paired differences."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import erfc, lgamma, log, nan, sqrt
from statistics import fmean, stdev
from typing import Self

import numpy as np

COVERAGE = 0.95  # of every interval
POWER = 0.8
FEW_PAIRS = 5  # fewer pairs get a warning: the interval means little
SMALLEST = 1e-12  # a bisection stops at this width, relative to its first interval
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
    half = spread / sqrt(pairs) * _edge(pairs - 1)
    few = f"rests on {pairs} pairs of seeds, too few for an interval that means much" if pairs < FEW_PAIRS else None
    return Paired(mean, mean - half, mean + half, pairs, spread / sqrt(pairs) * _noncentrality(pairs - 1), few)


@lru_cache
def _edge(free: int) -> float:
    """Return t_{0.975, free}, which |T| exceeds with probability 0.05; T is Student's t."""
    return _root(lambda edge: (1 - COVERAGE) - 2 * _above(edge, free), 2 / (1 - COVERAGE))


@lru_cache
def _noncentrality(free: int) -> float:
    """Return the c with P(|T| > t_{0.975, free}) = 0.8, T noncentral t with `free` degrees and noncentrality c."""
    edge = _edge(free)
    return _root(lambda c: _above(edge, free, c) + _above(edge, free, -c) - POWER, 2 * edge + 5)


def _above(edge: float, free: int, c: float = 0.0) -> float:
    """Return P(T > edge) = E Phi(c - edge s), T = (Z + c) / s, s^2 = chi^2 / free; to 1e-12, by Gauss-Legendre.

    >>> round(_above(12.7062047362, 1), 10), round(_above(2.2621571628, 9), 10)
    (0.025, 0.025)
    """
    reach = 9 / sqrt(free)  # the density of s is negligible farther than this from 1
    low, high = max(0.0, 1 - reach), 1 + reach
    nodes, weights = _nodes()
    s = low + (high - low) * (nodes + 1) / 2
    density = np.exp(free / 2 * (log(free / 2) - s * s) + log(2) - lgamma(free / 2) + (free - 1) * np.log(s))
    beyond = [erfc((edge * point - c) / sqrt(2)) / 2 for point in s.tolist()]
    return float((high - low) / 2 * np.sum(weights * density * beyond))


@lru_cache
def _nodes() -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(200)


def _root(function: Callable[[float], float], high: float) -> float:
    """Return where an increasing function crosses 0 in [0, high]."""
    low, width = 0.0, high
    while high - low > SMALLEST * width:
        middle = (low + high) / 2
        low, high = (low, middle) if function(middle) > 0 else (middle, high)
    return (low + high) / 2
