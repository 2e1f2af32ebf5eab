"""Numbers and what is said of them: an interval, what they rest on, the paper's value, a warning; means over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean, stdev

COVERAGE = 0.95  # of every interval

Form = str | Callable[[float], str]  # how a number is written: a format such as ".3f", or a function


class Interval:
    """A number with its 95% interval, as tables and pictures write all kinds of them.

    Subclasses have `value`, `low` and `high`: None where there is none.
    """

    @property
    def shown(self) -> tuple[float, float, float]:
        """Value, low and high as floats for plotting, NaN for None."""
        return tuple(float("nan") if number is None else number for number in (self.value, self.low, self.high))

    def interval(self, form: Form = ".3f") -> str:
        """ "0.100 to 0.200"; empty without an interval."""
        return "" if self.low is None else f"{written(self.low, form)} to {written(self.high, form)}"

    def text(self, form: Form = ".3f") -> str:
        """ "0.150 (0.100 to 0.200)"; "0.150" without an interval, "-" without a value."""
        interval = self.interval(form)
        return written(self.value, form) + (f" ({interval})" if interval else "")


def written(value: float | None, form: Form) -> str:
    """A number as text; "-" for None."""
    if value is None:
        return "-"
    return format(value, form) if isinstance(form, str) else form(value)


@dataclass(frozen=True)
class Estimate(Interval):
    """One number of an analysis over rows of several problems.

    Attributes:
        value: None where it is not defined; the warning says what it needs.
        low, high: the 95% interval; None without a value or with fewer than two problems.
        problems, rows: that the value rests on.
        paper: the paper's value; None if it gives none.
        warning: why the value or its interval says little; None if nothing speaks against it.
    """

    value: float | None
    low: float | None
    high: float | None
    problems: int
    rows: int
    paper: float | None = None
    warning: str | None = None


@dataclass(frozen=True)
class Stat:
    """Over seeds; fractions in [0, 1] (or whatever went in). `std` is the sample's, None for one seed."""

    mean: float
    std: float | None
    n: int

    @property
    def percent(self) -> Stat:
        """The same of percentages, from fractions."""
        return Stat(100 * self.mean, None if self.std is None else 100 * self.std, self.n)


def stat(values: Iterable[float]) -> Stat | None:
    """None without a value.

    >>> stat([1.0, 2.0, 3.0])
    Stat(mean=2.0, std=1.0, n=3)
    """
    values = list(values)
    if not values:
        return None
    return Stat(fmean(values), stdev(values) if len(values) > 1 else None, len(values))
