"""What an analysis estimates, as it is declared: one `Quantity` a number, or a number of each bin.

`Bootstrap.estimates` makes estimates of them by their names, and `numbers_of` the rows of a report's table.

Legend: P problems, N rows, V values of a quantity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.weighted import Ordered, ratio, spearman, sums


@dataclass(frozen=True)
class Quantity:
    """A number of an analysis, or V numbers of one kind.

    Attributes:
        name: of its field in the analysis' result.
        statistic: of (P,) problem weights, or of what `Bootstrap.estimates` makes of them once for all quantities: a
            number or (V,), NaN where it is not defined. None for the number of rows, which has no interval.
        rows: (P,) or (P, V) rows of each problem that it rests on.
        needs: what it must have to be defined, for the warning: "two different distances".
        span: largest minus smallest value that is possible; None if there is no bound.
        paper: the paper's value; a list of V has one each.
        what: its title in a report's table, where that shows it; a list of V has one each.
    """

    name: str
    statistic: Callable[[Any], float | np.ndarray] | None
    rows: np.ndarray
    needs: str = "a row"
    span: float | None = None
    paper: float | Sequence[float | None] | None = None
    what: str | Sequence[str | None] | None = None

    @property
    def columns(self) -> np.ndarray:
        """(P, V) the rows."""
        rows = np.asarray(self.rows)
        return rows[:, None] if rows.ndim == 1 else rows

    def of_each(self, given: object) -> list:
        """`paper` or `what` of each of the V values."""
        return list(given) if isinstance(given, list | tuple) else [given] * self.columns.shape[1]


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """What an analysis came to: a field a quantity; `numbers` are those of a report's table, by their titles."""

    numbers: dict[str, Estimate] = field(repr=False, compare=False)


def numbers_of(
    quantities: Sequence[Quantity], estimates: Mapping[str, Estimate | list[Estimate]]
) -> dict[str, Estimate]:
    """The estimates that have a title, by it, in the order in which their quantities are declared."""
    numbers = {}
    for quantity in quantities:
        made = estimates[quantity.name]
        made = made if isinstance(made, list) else [made]
        numbers |= {what: one for what, one in zip(quantity.of_each(quantity.what), made, strict=True) if what}
    return numbers


def ends(first: object, last: object, values: int) -> list:
    """`paper` or `what` of the first and the last of V values; without both of them, of none."""
    return [first, *[None] * (values - 2), last] if values > 1 else [None] * values


def means(
    name: str, values: np.ndarray, problems: np.ndarray, cells: np.ndarray, shape: tuple[int, int], **more
) -> Quantity:
    """The mean of the rows of each cell.

    Args:
        values, problems, cells: (N,); rows with a negative cell are left out.
        shape: (P, V), V the number of cells.
        more: of `Quantity`.
    """
    rows, total = sums(problems, cells, None, shape), sums(problems, cells, values, shape)
    return Quantity(name, lambda weights: ratio(weights @ total, weights @ rows), rows, **more)


def rho(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    problems: np.ndarray,
    part: np.ndarray,
    strata: np.ndarray | None = None,
    **more,
) -> Quantity:
    """Spearman's rho of the rows of a part, ranks taken within strata where there are any.

    Args:
        x, y, problems, strata: (N,), of all rows.
        part: (N,) booleans.
        more: of `Quantity`.
    """
    number = int(problems.max(initial=-1)) + 1
    problems, strata = problems[part], None if strata is None else strata[part]
    x, y = Ordered(x[part], strata), Ordered(y[part], strata)
    rows = np.bincount(problems, minlength=number)
    return Quantity(name, lambda weights: spearman(x, y, weights[problems]), rows, span=2, **more)
