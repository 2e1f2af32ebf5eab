"""Carriers: what travels between the folders of `train/`, typed, each with an example."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NotRequired, Self, TypedDict

if TYPE_CHECKING:
    from openrlhf.trainer.ppo_utils.experience import Experience

# ── Keys of a rollout's `Experience.info`, each with a (1,) float tensor ──

FAILED = "reward_failed"  # sampling -> experience, update: 1.0 where the reward is only a placeholder
ENGINE = "engine"  # sampling -> experience: the number of the engine that sampled it, or:
OLDER = -1  # sampled before the last weight synchronization
FILLER = "filler"  # experience -> update: 1.0 for a row without weight, which completes an optimizer step


@dataclass
class Accounts:
    """Account of every rollout that was paid for, since the start of the run and through resumes.

    dispatched = trained + filtered + failed + waiting; `run/books.py` closes it after each step.

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

    def state(self, waiting: int) -> dict[str, object]:
        """Return what a checkpoint keeps, with `waiting` rollouts beside it.

        >>> Accounts(dispatched=64, trained=48, filtered=8, failed=Counter(timeout=4)).state(waiting=4)
        {'dispatched': 64, 'filtered': 8, 'trained': 48, 'failed': {'timeout': 4}, 'waiting': 4}
        """
        counts = {name: getattr(self, name) for name in ("dispatched", "filtered", "trained")}
        return counts | {"failed": dict(self.failed), "waiting": waiting}

    @classmethod
    def resumed(cls, state: dict) -> Self:
        """Return a checkpoint's accounts."""
        return cls(state["dispatched"], state["filtered"], state["trained"], Counter(state["failed"]))

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


@dataclass(frozen=True)
class Prompt:
    """Prompt on its way to an engine.

    Example: the third prompt of the first episode, with --train.seed 42, has the place (42, "episode", 0, 2).
    """

    place: tuple  # in the run; it determines the seed, and its last entry the order of the prompts
    text: str  # as the policy reads it
    label: object
    images: object  # None for none
    ids: list[int] | None = None  # token ids of the text; None where the engine makes them: images, agents


@dataclass(frozen=True)
class Batch:
    """Rollouts of a step, with the run's place in the data after them: `sampling/` makes it, `run/` trains on it.

    Example: an episode has 40 prompts, and a step 8 prompts of 4 rollouts. The episode's last batch has 32 samples,
    counts with dispatched 32, place (0, 40), and nothing in `reserve`.
    """

    samples: list["Experience"]  # whole groups in prompt order; empty if nothing passed the filter
    pass_rate: float | None  # share of prompts that passed (%)
    counts: Accounts  # counts of all rollouts sampled for it
    seconds: float  # duration of the generation
    place: tuple[int, int]  # the episode, and the number of its consumed prompts
    reserve: list["Experience"]  # accepted rollouts for later batches
    last: bool  # whether no prompt of the run is left


class RunState(TypedDict):
    """State of a run in a checkpoint, beside weights and optimizer; a plain dictionary, as DeepSpeed stores it.

    Example, after step 7 of a run of 40 prompts an episode, 8 a step: {"episode": 1, "consumed": 16, "global_step": 7,
    "total_consumed_prompts": 56, "ledger": {...}, "waiting": [], "kl": 0.01, "fingerprint":
    {"seed": {"train.seed": 42}, ...}}. The states of the best evaluation (`run.saving.Best.states`) come with them.
    """

    episode: int  # from 0
    consumed: int  # prompts of the episode
    global_step: int
    total_consumed_prompts: int
    ledger: NotRequired[dict]  # `Accounts.state`
    learned: NotRequired[list[int]]  # `books.Advantages.counts`
    waiting: NotRequired[list[dict]]  # fields of the `Experience` of each rollout for a later step
    kl: NotRequired[float]  # the coefficient
    fingerprint: NotRequired[dict[str, dict[str, object]]]  # `checkpoints.fingerprint.Fingerprint.topics`


@dataclass(frozen=True)
class Save:
    """What to save of a step: `run.saving.what_to_save` decides it, and `update/` writes it.

    >>> Save(step=8, checkpoint=True, model=False).tag, Save(12, checkpoint=False, model=True, best=True).tag
    ('global_step8', 'best_global_step12')
    """

    step: int
    checkpoint: bool  # DeepSpeed's: weights and optimizer, from which a run can resume
    model: bool  # Hugging Face's: weights alone, in a folder TAG_hf
    best: bool = False  # whether it is the best so far, which replaces the best before

    @property
    def tag(self) -> str:
        """Name of the folder, as upstream has it."""
        return f"{'best_' if self.best else ''}global_step{self.step}"
