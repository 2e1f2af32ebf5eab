"""Rows of several problems, and the quantities that analyses declare over them: means, ranks, Spearman's rho, AUCs.

A bootstrap uses the same rows a thousand times with other weights (a weight of 2 equals the row twice), so the values
are sorted only once.

Legend: N rows, P problems, S strata (rows are compared only within a stratum).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from openrlhf_shear.report.bootstrap import Quantity

if TYPE_CHECKING:
    import pandas


class Ordered:
    """Values sorted within strata, to be ranked under any weights.

    Args:
        values: (N,) finite numbers.
        strata: (N,) integers in [0, S); None for a single stratum.
    """

    def __init__(self, values: np.ndarray, strata: np.ndarray | None = None) -> None:
        values = np.asarray(values, dtype=float)
        strata = np.zeros(len(values), dtype=int) if strata is None else np.asarray(strata)
        order = np.lexsort((values, strata))
        changed = (np.diff(values[order], prepend=np.nan) != 0) | (np.diff(strata[order], prepend=-1) != 0)
        self.codes = np.empty(len(values), dtype=int)  # index of the distinct (stratum, value) pair, in order
        self.codes[order] = np.cumsum(changed) - 1
        self._size = int(changed.sum())
        self._stratum = strata[order][changed]  # by code
        self.strata = int(strata.max(initial=-1)) + 1

    def ranks(self, weights: np.ndarray) -> np.ndarray:
        """Return (N,) the share of the stratum's weight below the value, ties half: in (0, 1), 0.5 on average."""
        mass = np.bincount(self.codes, weights, self._size)
        totals = np.bincount(self._stratum, mass, self.strata)[self._stratum]
        ranks = np.divide(self._below(mass), totals, out=np.full(self._size, 0.5), where=totals > 0)
        return ranks[self.codes]

    def wins(self, positive: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return two (S,) weights of (positive, negative) pairs: those that the positive row wins, ties half, and all.

        Their ratio is the AUC of a stratum. The ratio of their sums is the AUC of all strata, weighted by pairs.
        """
        mass = np.bincount(self.codes, weights * positive, self._size)
        other = np.bincount(self.codes, weights * ~positive, self._size)
        won = np.bincount(self._stratum, mass * self._below(other), self.strata)
        pairs = np.bincount(self._stratum, mass, self.strata) * np.bincount(self._stratum, other, self.strata)
        return won, pairs

    def _below(self, mass: np.ndarray) -> np.ndarray:
        """Return, by code, the mass below it in its stratum plus half of the code's mass."""
        totals = np.bincount(self._stratum, mass, self.strata)
        before = np.cumsum(totals) - totals
        return np.cumsum(mass) - mass / 2 - before[self._stratum]


def spearman(x: Ordered, y: Ordered, weights: np.ndarray) -> float:
    """Return Spearman's rho; with strata, the correlation of ranks within strata. NaN if x or y is constant in each.

    Each stratum counts by its weight; differences between strata do not count.
    """
    a, b = x.ranks(weights) - 0.5, y.ranks(weights) - 0.5
    scale = np.sqrt(np.sum(weights * a * a) * np.sum(weights * b * b))
    return float(np.sum(weights * a * b) / scale) if scale > 0 else np.nan


def spearman_of(x: np.ndarray, y: np.ndarray) -> float:
    """Return Spearman's rho of two curves without their undefined points; NaN below three points or for a constant."""
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return np.nan
    return spearman(Ordered(x), Ordered(y), np.ones(len(x)))


def not_alone(part: np.ndarray, strata: np.ndarray) -> np.ndarray:
    """Return (N,) the rows of a part (a mask) with another of the part in their stratum: a lone row has no rank."""
    return part & (np.bincount(strata[part], minlength=len(part))[strata] > 1)


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return above / below; NaN where `below` is 0."""
    above, below = np.asarray(above, dtype=float), np.asarray(below, dtype=float)
    return np.divide(above, below, out=np.full(np.broadcast_shapes(above.shape, below.shape), np.nan), where=below > 0)


def problem_codes(problems: Sequence[str]) -> tuple[np.ndarray, int]:
    """Return (N,) which problem each row belongs to, from 0, and the number of problems."""
    known: dict[str, int] = {}
    codes = [known.setdefault(problem, len(known)) for problem in problems]
    return np.array(codes, dtype=int), len(known)


def sums(problems: np.ndarray, cells: np.ndarray, values: np.ndarray | None, shape: tuple[int, int]) -> np.ndarray:
    """Return (P, V) sums of the values, or counts of the rows, by problem and cell; negative cells are left out."""
    inside = cells >= 0
    flat = problems[inside] * shape[1] + cells[inside]
    return np.bincount(flat, None if values is None else values[inside], shape[0] * shape[1]).reshape(shape)


class Rows:
    """Rows with the columns `problem` and `correct`; arguments name columns, or are (N,) arrays."""

    def __init__(self, frame: pandas.DataFrame) -> None:
        self.frame = frame
        self.problems, self.number = problem_codes(frame["problem"])
        self.every = np.ones(len(frame), dtype=bool)
        self.correct = frame["correct"].to_numpy(dtype=bool)

    def __getitem__(self, column: str) -> np.ndarray:
        return self.frame[column].to_numpy()

    def outcomes(self) -> dict[str, tuple[np.ndarray, str]]:
        """Map the end of a quantity's name to (N,) a mask (all, originally correct, incorrect) and its title's end."""
        whose = ", originally {} rollouts"
        return {
            "": (self.every, ""),
            "_correct": (self.correct, whose.format("correct")),
            "_incorrect": (~self.correct, whose.format("incorrect")),
        }

    def counts(self, part: np.ndarray) -> np.ndarray:
        """Return (P,) how many rows of a part (a mask) each problem has."""
        return np.bincount(self.problems[part], minlength=self.number)

    def sums(self, cells: np.ndarray, n: int, values: np.ndarray | None = None) -> np.ndarray:
        """Return (P, n) sums of the values, or counts of the rows, by cell; rows with a negative cell are left out."""
        return sums(self.problems, cells, values, (self.number, n))

    def strata(self, *keys: str) -> np.ndarray:
        """Return (N,) the index, from 0, of each row's distinct combination of these columns."""
        return self.frame.groupby(list(keys)).ngroup().to_numpy(dtype=int)

    def means(self, name: str, column: str, cells: np.ndarray, n: int, **more) -> Quantity:
        """Return the means of a column by cell; `more` goes to `Quantity`."""
        rows, total = self.sums(cells, n), self.sums(cells, n, self[column])
        return Quantity(name, lambda weights: ratio(weights @ total, weights @ rows), rows, **more)

    def rho(
        self, name: str, part: np.ndarray, strata: np.ndarray | None = None, *, columns: tuple[str, str], **more
    ) -> Quantity:
        """Return Spearman's rho of two columns in a part, ranks within strata if given; `more` goes to `Quantity`."""
        own = None if strata is None else strata[part]
        x, y = (Ordered(self[column][part], own) for column in columns)
        problems = self.problems[part]
        return Quantity(name, lambda weights: spearman(x, y, weights[problems]), self.counts(part), span=2, **more)
