"""Rollouts that had an advantage: those of groups whose rewards differ. Others teach a rule of groups nothing."""

from collections.abc import Sequence

from openrlhf_shear.line.values import OF_GROUPS

QUIET_STEPS = 2  # in a row without a mixed group, before a warning


def compares_rewards(args) -> bool:
    """Return whether a rollout has an advantage only if its group has different rewards of the grader."""
    shaped = (args.reward.overlong_buffer_len, args.reward.stop_properly_penalty_coef)
    return args.algo.advantage.estimator in OF_GROUPS and shaped == (None, None)


class Advantages:
    """Counter of a run's rollouts with an advantage, for estimators that compare the rollouts of a prompt."""

    def __init__(self, size: int):
        """
        Args:
            size: rollouts of a group.
        """
        self._size = size
        self.rollouts = self.with_advantage = 0
        self._quiet = 0  # steps in a row in which no rollout had one

    def note(self, rewards: Sequence[float | None]) -> str:
        """Count a step; return a warning after every `QUIET_STEPS` steps in a row without a mixed group, else "".

        Args:
            rewards: the rewards of a step's rollouts, groups one after the other; None for a reward that failed.
        """
        before, groups = self.with_advantage, range(0, len(rewards), self._size)
        for group in ([each for each in rewards[at : at + self._size] if each is not None] for at in groups):
            self.with_advantage += len(group) * (len(set(group)) > 1)
        self.rollouts += len(rewards)
        graded = {each for each in rewards if each is not None}
        if self.with_advantage > before or not graded:
            self._quiet = 0
            return ""
        self._quiet += 1
        if self._quiet % QUIET_STEPS:
            return ""
        alike = f"all {len(rewards)} rewards are {graded.pop():g}" if len(graded) == 1 else "no group has two rewards"
        count = self._quiet * len(rewards)
        return f"{alike}: nothing is learned; 0 of the last {count} rollouts had an advantage"

    def shown(self) -> str:
        """Return a line for the end of a run; "" if no step was counted."""
        if not self.rollouts:
            return ""
        told = f"{self.with_advantage} of {self.rollouts} rollouts had an advantage"
        return told if self.with_advantage else f"{told}: NOTHING WAS LEARNED; look at the reward and its labels"
