"""Appendix "Difficulty Distribution": how many groups are mixed, and how often their rollouts are correct."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openrlhf_shear.report.estimates import Bootstrap, Estimate
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
class Groups:
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

    @property
    def numbers(self) -> dict[str, Estimate]:
        return {
            "Mean accuracy of groups": self.accuracy,
            "Retained: groups with correct and incorrect rollouts": self.retained,
            "Share of the most frequent accuracy among retained groups (paper: below)": self.largest,
        }


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

    def statistic(weights: np.ndarray) -> np.ndarray:
        at, total = weights @ one, weights.sum()
        retained = ratio(at[1:-1], np.full(samples - 1, at[1:-1].sum()))
        ends = [at[1:-1].sum() / total, retained[largest], weights @ accuracies / total]
        return np.concatenate([at / total, retained, ends])

    everything, own = np.ones((len(accuracies), 1), dtype=int), mixed.sum(axis=1, keepdims=True)
    bases = np.hstack([everything] * (samples + 1) + [own] * (samples - 1) + [everything, own, everything])
    papers = [None] * 2 * samples + [PAPER_RETAINED, PAPER_LARGEST, None]
    found = bootstrap.estimates(statistic, bases, "a group with correct and incorrect rollouts", 1.0, papers)
    shares, retained = found[: samples + 1], [None, *found[samples + 1 : 2 * samples], None]
    levels = [Level(k / samples, int(one[:, k].sum()), shares[k], retained[k]) for k in range(samples + 1)]
    missing = None if asked is None else max(0, asked - len(names))
    return Groups(samples, levels, *found[2 * samples :], len(names) - len(outcomes), missing)
