"""Prefixes, or other rows of several problems, and the quantities that analyses declare of them.

Legend: N rows, P problems.
"""

from __future__ import annotations

import numpy as np
import pandas

from openrlhf_shear.report.bootstrap import Quantity
from openrlhf_shear.report.weighted import Ordered, problem_codes, ratio, spearman, sums


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
        """The end of a quantity's name -> (N,) all, originally correct and incorrect ones, and the end of its title."""
        whose = ", originally {} rollouts"
        return {
            "": (self.every, ""),
            "_correct": (self.correct, whose.format("correct")),
            "_incorrect": (~self.correct, whose.format("incorrect")),
        }

    def counts(self, part: np.ndarray) -> np.ndarray:
        """(P,) how many rows of a part (a mask) each problem has."""
        return np.bincount(self.problems[part], minlength=self.number)

    def sums(self, cells: np.ndarray, n: int, values: np.ndarray | None = None) -> np.ndarray:
        """(P, n) sums of the values, or counts of the rows, by cell; rows with a negative cell are left out."""
        return sums(self.problems, cells, values, (self.number, n))

    def strata(self, *keys: str) -> np.ndarray:
        """(N,) which distinct values of the columns each row has, from 0."""
        return self.frame.groupby(list(keys)).ngroup().to_numpy(dtype=int)

    def means(self, name: str, column: str, cells: np.ndarray, n: int, **more) -> Quantity:
        """The means of a column by cell; `more` is of `Quantity`."""
        rows, total = self.sums(cells, n), self.sums(cells, n, self[column])
        return Quantity(name, lambda weights: ratio(weights @ total, weights @ rows), rows, **more)

    def rho(
        self, name: str, part: np.ndarray, strata: np.ndarray | None = None, *, columns: tuple[str, str], **more
    ) -> Quantity:
        """Spearman's rho of two columns in a part, ranks taken within strata if given; `more` is of `Quantity`."""
        own = None if strata is None else strata[part]
        x, y = (Ordered(self[column][part], own) for column in columns)
        problems = self.problems[part]
        return Quantity(name, lambda weights: spearman(x, y, weights[problems]), self.counts(part), span=2, **more)
