"""Watch on the threshold of correctness: a group of different rewards that all count as correct has no credit.

A rule that compares correct with incorrect rollouts gives every token of such a group weight 1, so training is GRPO's.
"""

from collections.abc import Sequence

from openrlhf_shear.credit.rule import GroupCredit

_SHOWN = 4  # scores that a line lists; of more it gives the least and the largest


class Outcomes:
    """Watch of a run on its groups."""

    def __init__(self, flag: str, threshold: float, which: str):
        """
        Args:
            flag: the setting of the threshold, as a user writes it.
            threshold: a rollout is correct if its score is at least this.
            which: the setting that names the reward that decides.
        """
        self._flag, self._threshold, self._which = flag, threshold, which
        self._scores: set[float] = set()
        self._groups = self._different = 0  # groups of the run; of these with different rewards
        self._credited = self._told = False  # whether any group had both outcomes or token credit; whether it was told

    def note(self, groups: Sequence[GroupCredit]) -> str:
        """Count a step's groups; return a line at the first in which rewards differ and no group was ever mixed."""
        for group in groups:
            rewards = {reward for reward in group.rewards if reward == reward}
            self._groups, self._different = self._groups + 1, self._different + (len(rewards) > 1)
            rows = (row for tensors in group.tensors().values() for row in tensors)
            self._credited |= {True, False} <= set(group.correct) or any((row != row[:1]).any() for row in rows)
            self._scores |= rewards if len(self._scores) <= 1000 else {min(rewards, default=0), max(rewards, default=0)}
        if self._told or not self.shown():
            return ""
        self._told = True
        return self.shown()

    def shown(self) -> str:
        """Return the line if no group was mixed although rewards differed, else "".

        >>> group = GroupCredit((0, 1), (1.5, 0.5), (True, True), {}, 0.0)
        >>> Outcomes("threshold", 0.5, "reward").note([group]).split(",")[0]
        'rewards differ within 1 of 1 groups'
        """
        if self._credited or not self._different:
            return ""
        low, high = min(self._scores), max(self._scores)
        scores = sorted(self._scores)
        seen = ", ".join(f"{score:g}" for score in scores) if len(scores) <= _SHOWN else f"{low:g} to {high:g}"
        side = "at least" if low >= self._threshold else "below" if high < self._threshold else "on one side of"
        remedy = f"a threshold between {low:g} and {high:g}" if side != "on one side of" else "another threshold"
        return (
            f"rewards differ within {self._different} of {self._groups} groups, but no group has correct and incorrect "
            f"rollouts, so all tokens of a rollout have the same credit: scores {seen} are {side} {self._flag} "
            f"{self._threshold:g} in every group; use {remedy}, or {self._which} to name the reward that decides"
        )
