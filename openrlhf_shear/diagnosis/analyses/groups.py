"""Appendix "Difficulty Distribution": how many groups are mixed, and the accuracies of their rollouts."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from operator import itemgetter

import numpy as np

from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, Quantity, parts
from openrlhf_shear.report.rows import ratio
from openrlhf_shear.rollouts.record import Rollout

PAPER_RETAINED = 0.838
PAPER_LARGEST = 0.18  # "less than 18%"


def group_accuracies(
    rollouts: Sequence[Rollout], samples: int, bootstrap: Bootstrap, problems: int | None = None
) -> Analysis:
    """Return the distribution of group accuracies.

    samples: G, at least 2, since a group of one rollout is never mixed.
    levels: groups with k = 0..G of G rollouts correct (`accuracy`, `groups`), and their `share` of all groups. For
        mixed groups, 0 < k < G, it has their `retained_share` of the mixed groups too. A group with fewer graded
        rollouts counts for the nearest level.
    retained: the share of mixed groups, which have an opposing side.
    largest: the largest retained share of a level. The level is chosen after the fact, so the interval is too narrow.
    accuracy: the mean over groups.
    left_out: groups without any graded rollout.
    missing: problems without any sampled rollout; None if the number of `problems` is not known.

    `rollouts` are those of all groups, mixed or not. Rollouts without an outcome do not count.
    """
    samples = max(samples, 2)
    outcomes: dict[str, list[bool]] = defaultdict(list)
    names = {rollout.group for rollout in rollouts}
    for rollout in rollouts:
        if rollout.correct is not None:
            outcomes[rollout.group].append(rollout.correct)
    accuracies = np.array([np.mean(of) for of in outcomes.values()])
    level = np.rint(accuracies * samples).astype(int)
    at_level = (level[:, None] == np.arange(samples + 1)).astype(int).reshape(-1, samples + 1)
    every, own = np.ones_like(at_level), np.repeat(at_level[:, 1:-1].sum(axis=1, keepdims=True), samples - 1, axis=1)
    largest = int(at_level[:, 1:-1].sum(axis=0).argmax()) if at_level.size else 0

    def shares(weights: np.ndarray) -> dict[str, np.ndarray]:
        at, total = weights @ at_level, weights.sum()
        mixed = at[1:-1].sum()
        of_mixed = ratio(at[1:-1], np.full(samples - 1, mixed))
        return {"all": at / total, "mixed": of_mixed, "retained": mixed / total, "mean": weights @ accuracies / total}

    quantity = partial(Quantity, needs="a group with correct and incorrect rollouts", span=1.0)
    most = "Share of the most frequent accuracy among retained groups (paper: below)"
    mixed_title = "Retained: groups with correct and incorrect rollouts"
    estimates = bootstrap.estimates(
        [
            quantity("accuracy", itemgetter("mean"), every[:, 0], what="Mean accuracy of groups"),
            quantity("retained", itemgetter("retained"), every[:, 0], paper=PAPER_RETAINED, what=mixed_title),
            quantity("largest", lambda of: of["mixed"][largest], own[:, 0], paper=PAPER_LARGEST, what=most),
            quantity("share", itemgetter("all"), every),
            quantity("retained_share", itemgetter("mixed"), own),
        ],
        shares,
    )
    levels = parts(
        accuracy=[k / samples for k in range(samples + 1)],
        groups=at_level.sum(axis=0).tolist(),
        share=estimates.share,
        retained_share=[None, *estimates.retained_share, None],
    )
    entries = {"samples": samples, "levels": levels} | {
        name: estimates[name] for name in ("retained", "largest", "accuracy")
    }
    entries["left_out"] = len(names) - len(outcomes)
    entries["missing"] = None if problems is None else max(0, problems - len(names))
    return Analysis(entries, estimates.numbers)
