"""Account of every rollout that was paid for: dispatched = trained + filtered + failed(reason) + waiting."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Self


@dataclass
class Accounts:
    """Counts of rollouts since the start of the run, through resumes.

    Example: 16 are sampled, a group of 4 is filtered, 1 raises. Then dispatched is 16, filtered 4, failed {"raised
    ValueError": 1} and trained 11.
    """

    dispatched: int = 0  # sent to the engines for training
    filtered: int = 0  # in groups that dynamic filtering rejected
    trained: int = 0  # with a reward, in applied optimizer steps
    failed: Counter[str] = field(default_factory=Counter)  # by reason
    shown: set[str] = field(default_factory=set)  # reasons with a rollout shown already
    details: dict[str, str] = field(default_factory=dict)  # detail of the last failure of each reason
    filtered_scores: str = ""  # in words: the mean scores of the prompts filtered in a row

    def metrics(self, waiting: int) -> dict[str, float]:
        """Return the `ledger/...` metrics of a step, cumulative.

        Args:
            waiting: rollouts that are sampled and accepted, for a later step.

        Raises:
            RuntimeError: the counts do not add up.
        """
        failed = sum(self.failed.values())
        if self.dispatched != self.trained + self.filtered + failed + waiting:
            raise RuntimeError(
                f"rollouts are unaccounted for: {self.dispatched} dispatched, but {self.trained} trained, "
                f"{self.filtered} filtered, {failed} failed and {waiting} waiting; please report this"
            )
        counts = {"dispatched": self.dispatched, "trained": self.trained, "filtered": self.filtered, "failed": failed}
        reasons = {f"failed_{reason.replace(' ', '_')}": count for reason, count in self.failed.items()}
        return {f"ledger/{name}": float(count) for name, count in (counts | {"waiting": waiting} | reasons).items()}

    def state(self, waiting: int) -> dict:
        """Return what a checkpoint keeps, with `waiting` rollouts beside it."""
        return {
            **{name: getattr(self, name) for name in ("dispatched", "filtered", "trained")},
            **{"failed": dict(self.failed), "waiting": waiting},
        }

    @classmethod
    def resumed(cls, state: dict, waiting: int) -> Self:
        """Return a checkpoint's accounts, of whose waiting rollouts `waiting` are left: the others count as failed."""
        accounts = cls(state["dispatched"], state["filtered"], state["trained"], Counter(state["failed"]))
        if state["waiting"] > waiting:
            accounts.failed["lost by a resume"] += state["waiting"] - waiting
        return accounts

    def add(self, counts: Self) -> None:
        """Add the counts that were made elsewhere meanwhile."""
        self.dispatched += counts.dispatched
        self.filtered += counts.filtered
        self.trained += counts.trained
        self.failed.update(counts.failed)
        self.details |= counts.details
        self.filtered_scores = counts.filtered_scores or self.filtered_scores

    def take(self) -> Self:
        """Return the counts, and start again from 0. Shown reasons stay shown."""
        counts = replace(self, shown=set())
        self.dispatched = self.filtered = self.trained = 0
        self.failed, self.details, self.filtered_scores = Counter(), {}, ""
        return counts

    def first_of(self, reason: str) -> bool:
        """Return whether `reason` has not been shown before. It counts as shown from now on."""
        new = reason not in self.shown
        self.shown.add(reason)
        return new
