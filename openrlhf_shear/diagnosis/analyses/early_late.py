"""Early prefixes against late ones: section 4's check of the distance, and what the token limit alone does.

A continuation has as many tokens left as its prefix did not use, and one that is cut short is mostly graded wrong. So
where truncation grows with the position, accuracy falls with it whatever the reasoning is like.

Legend: N prefixes, P problems, n cells.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter

import numpy as np
import pandas

from openrlhf_shear.diagnosis.analyses.rows import Rows
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, Quantity
from openrlhf_shear.report.weighted import ratio

PAPER_QUARTILES = (0.67, 0.75)
NEEDS = "prefixes at different positions"


def quartiles(prefixes: pandas.DataFrame, bootstrap: Bootstrap) -> Analysis:
    """Does the distance grow along the chain? Mean distances of early and of late prefixes, and last - first.

    first, last, difference: prefixes up to the first and from the third quartile of all prefix positions. That is our
        reading: the paper gives values for the "first quartile of prefix positions" and does not say how it cuts them.
    first_own, last_own, difference_own: prefixes in the first and last quarter of their own rollout's, so that every
        rollout counts in both; of one prefix alone in neither.
    """
    rows, (first, last) = Rows(prefixes), PAPER_QUARTILES
    of_rollout = prefixes.groupby(["problem", "sample"])["position"]
    own = (of_rollout.rank().to_numpy() - 0.5) / of_rollout.transform("size").to_numpy()
    cells = [(_quartiles(rows["position"]), 2), (_ends(own, 0.25, 0.75), 2)]
    counts, distances = _in_cells(rows, cells, rows["distance"], None)
    papers, quantities = (first, last, round(last - first, 2)), []
    for at, name, part, paper in (
        (0, "", "quartile of prefix positions", papers),
        (2, "_own", "quarter of each rollout", (None,) * 3),
    ):
        titles = [*(f"Mean distance in the {end} {part}" for end in ("first", "last")), f"Last minus first {part}"]
        quantities += _first_last(at, name, counts, titles, papers=paper)
    return bootstrap.estimates(quantities, distances)


def truncation(prefixes: pandas.DataFrame, bootstrap: Bootstrap) -> Analysis:
    """Does the token limit take more of the late continuations? Shares of those with a verdict; rows are prefixes.

    every: of all prefixes. first, last, difference: of those that `quartiles` compares.
    """
    rows, text = Rows(prefixes), "Completions that ended at the token limit"
    cells = [(np.zeros(len(prefixes), dtype=int), 1), (_quartiles(rows["position"]), 2)]
    counts, shares = _in_cells(rows, cells, rows["truncated"], rows["completions"])
    ends = "first quartile of prefix positions", "last quartile of prefix positions", "last minus first quartile"
    every = Quantity("every", itemgetter(0), counts[:, 0], NEEDS, 1.0, what=text)
    parts = _first_last(1, "", counts, [f"{text}, {end}" for end in ends], spans=(1.0, 1.0, 2.0))
    return bootstrap.estimates([every, *parts], shares)


def _in_cells(
    rows: Rows, cells: list[tuple[np.ndarray, int]], above: np.ndarray, below: np.ndarray | None
) -> tuple[np.ndarray, Callable]:
    """(P, n) rows of each cell, and of weights the (n,) sums of `above` over those of `below`, or over the rows."""
    tables = [np.hstack([rows.sums(cell, n, values) for cell, n in cells]) for values in (None, above, below)]
    return tables[0], lambda weights: ratio(weights @ tables[1], weights @ tables[2])


def _first_last(
    at: int, name: str, counts: np.ndarray, titles: list[str], papers: tuple = (None,) * 3, spans: tuple = (None,) * 3
) -> list[Quantity]:
    """Of cell `at` and the next one, and the second minus the first."""
    early, late = counts[:, at], counts[:, at + 1]
    kinds = (
        ("first", itemgetter(at), early),
        ("last", itemgetter(at + 1), late),
        ("difference", lambda of: of[at + 1] - of[at], early + late),
    )
    return [
        Quantity(end + name, of, on, NEEDS, span, paper, what)
        for (end, of, on), span, paper, what in zip(kinds, spans, papers, titles, strict=True)
    ]


def _quartiles(position: np.ndarray) -> np.ndarray:
    """(N,) 0 up to the first quartile of the positions, 1 from the third, otherwise -1; all -1 if the two are equal."""
    return _ends(position, *(np.quantile(position, [0.25, 0.75]) if len(position) else (0, 0)))


def _ends(place: np.ndarray, first: float, last: float) -> np.ndarray:
    """(N,) 0 up to `first`, 1 from `last`, otherwise -1; all -1 if the two are the same."""
    if not first < last:
        return np.full(len(place), -1)
    return np.where(place <= first, 0, np.where(place >= last, 1, -1))
