"""Books of a run: what each step trained on, when too little is left to go on, and how much had an advantage."""

import itertools
from argparse import Namespace
from collections.abc import Mapping, Sequence

from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.line.run import OF_GROUPS
from openrlhf_shear.train.carriers import Accounts, Batch
from openrlhf_shear.train.sampling.batches import Batches
from openrlhf_shear.train.screen.outcome import NotFiniteError, RewardsLostError

logger = init_logger(__name__)
QUIET_STEPS = 2  # in a row without a mixed group, before a warning


class Books:
    """Bookkeeper of a run: keeps the accounts, and counts steps in a row whose rewards or gradients failed."""

    def __init__(self, args: Namespace, batches: Batches):
        self._args, self._batches = args, batches
        self._bad_steps = self._skipped_steps = 0  # in a row
        self.moved = False  # whether any weight has changed in this run
        self.saved: int | None = None  # the step of the last checkpoint

    @property
    def accounts(self) -> Accounts:
        return self._batches.accounts

    @property
    def sound(self) -> bool:
        """Whether the last step's rewards and gradients were good enough for a checkpoint."""
        return not (self._bad_steps or self._skipped_steps)

    def judge_rewards(self, batch: Batch) -> None:
        """Count consecutive steps in which too many rewards failed.

        Raises:
            RewardsLostError: too many such steps came in a row, or the run ends without anything trained.
        """
        reward, failed, sampled = self._args.reward, batch.counts.failed, batch.counts.dispatched
        if not sampled:  # the batch is of rollouts that waited, and says nothing about the rewards now
            return
        share = sum(failed.values()) / sampled
        if share <= reward.max_failed:
            self._bad_steps = 0
            return
        self._bad_steps += 1
        (reason, count), *_ = failed.most_common()
        cause = f"{share:.0%} of {sampled} rewards failed, {count} of them: {reason}"
        if detail := batch.counts.details.get(reason):
            cause += f" ({detail})"
        logger.error(f"{cause}; step {self._bad_steps} of this kind in a row")
        if self._bad_steps >= reward.max_failed_steps or (not self.accounts.trained and batch.last):
            raise RewardsLostError(
                f"{cause}, in {self._bad_steps} steps in a row (--reward.max_failed, --reward.max_failed_steps); "
                f"{self.last_good}: mend the rewards and start again with --ckpt.load_enable"
            )

    def close(
        self, step: int, graded: int, broken: Mapping[str, int], trained: int | None, moved: bool
    ) -> dict[str, float]:
        """Enter a step in the accounts: the rollouts in applied optimizer steps, and the reasons for all others.

        Args:
            step: the step's number.
            graded: the number of the step's rollouts with a reward.
            broken: how many of these had a value that is not finite, by reason.
            trained: how many were in applied optimizer steps; None in a step that updates the critic alone.
            moved: whether a weight changed.

        Returns:
            The step's `nonfinite/...` and `ledger/...` metrics.

        Raises:
            NotFiniteError: for too many steps, the optimizer skipped or no rollout was finite.
        """
        left = graded - sum(broken.values())
        trained = left if trained is None else trained
        for reason, count in {**broken, "update skipped, gradient not finite": left - trained}.items():
            if count:
                self.accounts.failed[reason] += count
                logger.error(f"step {step}: {count} of {graded} rollouts were not trained on: {reason}")
        self.accounts.trained += trained
        self.moved |= moved and trained > 0
        self._skipped_steps = self._skipped_steps + 1 if graded and not trained else 0
        if self._skipped_steps >= self._args.train.max_skipped_steps:
            reasons = [reason for reason, count in broken.items() if count] or ["gradient not finite"]
            raise NotFiniteError(
                f"{self._skipped_steps} steps in a row trained on nothing (--train.max_skipped_steps): {reasons[0]}; "
                f"{self.last_good}"
            )
        metrics = {f"nonfinite/{reason.replace(' ', '_')}": float(count) for reason, count in broken.items()}
        return metrics | self.balance()

    def refuse_untrained(self, step: int) -> None:
        """Refuse to end normally if nothing was trained: the first model must not pass for a trained one.

        Args:
            step: the number of the last step, resumes included.

        Raises:
            RewardsLostError: nothing was trained, because rewards failed or dynamic filtering dropped all rollouts.
            NotFiniteError: nothing was trained, because no gradient was finite.
        """
        accounts = self.accounts
        if accounts.trained:
            return
        failed = ", ".join(f"{count} {reason}" for reason, count in accounts.failed.most_common())
        message = f"no optimizer step in {step} steps, so there is no trained model: of {accounts.dispatched} rollouts "
        if accounts.filtered:
            low, high = self._args.algo.dynamic_filtering_range
            scores = accounts.filtered_scores or "their scores are not known"
            raise RewardsLostError(
                f"{message}{accounts.filtered} were filtered ({scores}; --algo.dynamic_filtering_range is {low:g} "
                f"{high:g}){f', and {failed}' if failed else ''}; use a range around the mean of a mixed group, "
                "e.g. -1 1 for rewards of -1 and 1, or easier prompts"
            )
        lost = NotFiniteError if self._skipped_steps else RewardsLostError
        raise lost(f"{message}{failed or 'none was sampled'}")

    @property
    def last_good(self) -> str:
        """The end of an error's message: which checkpoint is there."""
        if self.saved is None:
            return "no checkpoint was made"
        return f"the checkpoint of step {self.saved} is the last good one"

    def balance(self) -> dict[str, float]:
        """Log the accounts' metrics, which add up, and return them."""
        metrics = self._batches.metrics()
        logger.info("ledger: " + ", ".join(f"{k.removeprefix('ledger/')} {v:.0f}" for k, v in metrics.items()))
        return metrics


def compares_rewards(args) -> bool:
    """Return whether a rollout has an advantage only if its group has different rewards of the grader."""
    shaped = (args.reward.overlong_buffer_len, args.reward.stop_properly_penalty_coef)
    return args.algo.advantage.estimator in OF_GROUPS and shaped == (None, None)


class Advantages:
    """Counter of a run's rollouts with an advantage, for estimators that compare the rollouts of a prompt."""

    def __init__(self, size: int):
        self._size = size  # rollouts of a group
        self.counts = [0, 0]  # rollouts with an advantage, and all, since the start of the run
        self._quiet = 0  # steps in a row in which no rollout had one

    def note(self, rewards: Sequence[float | None]) -> str:
        """Count a step; return a warning after every `QUIET_STEPS` steps in a row without a mixed group, else "".

        Args:
            rewards: the rewards of a step's rollouts, groups one after the other; None for a reward that failed.
        """
        starts = range(0, len(rewards), self._size)
        groups = [[each for each in rewards[at : at + self._size] if each is not None] for at in starts]
        taught, graded = sum(len(group) for group in groups if len(set(group)) > 1), {*itertools.chain(*groups)}
        self.counts = [self.counts[0] + taught, self.counts[1] + len(rewards)]
        self._quiet = 0 if taught or not graded else self._quiet + 1
        if not self._quiet or self._quiet % QUIET_STEPS:
            return ""
        alike = f"all {len(rewards)} rewards are {graded.pop():g}" if len(graded) == 1 else "no group has two rewards"
        count = self._quiet * len(rewards)
        return f"{alike}: nothing is learned; 0 of the last {count} rollouts had an advantage"

    @staticmethod
    def shown(counts: Sequence[int]) -> str:
        """Return a line for the end of a run with these counts; "" if no step was counted."""
        if not counts[1]:
            return ""
        message = f"{counts[0]} of {counts[1]} rollouts had an advantage"
        return message if counts[0] else f"{message}: NOTHING WAS LEARNED; look at the reward and its labels"
