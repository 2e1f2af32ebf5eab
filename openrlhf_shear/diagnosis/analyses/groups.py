"""Appendix "Difficulty Distribution": how many groups are mixed, and how often their rollouts are correct."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter

import numpy as np

from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, Quantity, numbers_of
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.weighted import ratio
from openrlhf_shear.rollouts.record import Rollout

PAPER_RETAINED = 0.838
PAPER_LARGEST = 0.18  # "less than 18%"


@dataclass(frozen=True)
class Level:
    """Groups with k of G rollouts correct, and their share of all groups and of the mixed ones."""

    accuracy: float
    groups: int
    share: Estimate
    retained_share: Estimate | None


@dataclass(frozen=True)
class Groups(Analysis):
    """Accuracies of groups.

    Attributes:
        samples: G.
        levels: of k = 0..G; the mixed ones are those between.
        retained: the share of mixed groups, which have an opposing side.
        largest: the retained share of the level that has most; chosen after the fact, so its interval is too narrow.
        accuracy: mean over groups.
        left_out: groups without any graded rollout.
        missing: problems without any sampled one; None if it is not known how many were asked for.
    """

    samples: int
    levels: list[Level]
    retained: Estimate
    largest: Estimate
    accuracy: Estimate
    left_out: int
    missing: int | None


def group_accuracies(
    rollouts: Sequence[Rollout], samples: int, bootstrap: Bootstrap, asked: int | None = None
) -> Groups:
    """The distribution of group accuracies.

    Args:
        rollouts: of all groups, mixed or not; those without an outcome count nowhere.
        samples: G, rollouts of a prompt. A group with fewer graded ones counts for the nearest k / G.
        asked: problems that rollouts were asked of.
    """
    samples = max(samples, 2)  # a group of one is never mixed, and has no levels between
    outcomes: dict[str, list[bool]] = defaultdict(list)
    names = Counter(rollout.group for rollout in rollouts)
    for rollout in rollouts:
        if rollout.correct is not None:
            outcomes[rollout.group].append(rollout.correct)
    accuracies = np.array([np.mean(of) for of in outcomes.values()])
    level = np.rint(accuracies * samples).astype(int)
    one = (level[:, None] == np.arange(samples + 1)).astype(int).reshape(-1, samples + 1)
    mixed = one[:, 1:-1]
    largest = int(mixed.sum(axis=0).argmax()) if mixed.size else 0

    def shares(weights: np.ndarray) -> dict[str, np.ndarray]:
        at, total = weights @ one, weights.sum()
        kept = at[1:-1].sum()
        of_kept = ratio(at[1:-1], np.full(samples - 1, kept))
        return {"all": at / total, "kept": of_kept, "retained": kept / total, "mean": weights @ accuracies / total}

    every, own = np.ones(len(accuracies), dtype=int), mixed.sum(axis=1)
    quantity = partial(Quantity, needs="a group with correct and incorrect rollouts", span=1.0)
    most = "Share of the most frequent accuracy among retained groups (paper: below)"
    kept_title = "Retained: groups with correct and incorrect rollouts"
    quantities = [
        quantity("accuracy", itemgetter("mean"), every, what="Mean accuracy of groups"),
        quantity("retained", itemgetter("retained"), every, paper=PAPER_RETAINED, what=kept_title),
        quantity("largest", lambda of: of["kept"][largest], own, paper=PAPER_LARGEST, what=most),
        quantity("share", itemgetter("all"), np.repeat(every[:, None], samples + 1, axis=1)),
        quantity("retained_share", itemgetter("kept"), np.repeat(own[:, None], samples - 1, axis=1)),
    ]
    estimates = bootstrap.estimates(quantities, shares)
    numbers = numbers_of(quantities, estimates)
    share, retained_share = estimates.pop("share"), [None, *estimates.pop("retained_share"), None]
    levels = [Level(k / samples, int(one[:, k].sum()), share[k], retained_share[k]) for k in range(samples + 1)]
    missing = None if asked is None else max(0, asked - len(names))
    left_out = len(names) - len(outcomes)
    return Groups(samples, levels, **estimates, left_out=left_out, missing=missing, numbers=numbers)
