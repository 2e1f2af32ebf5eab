"""Carriers: what travels between the folders of `train/`, typed, each with an example. They hold data, no behaviour."""

from dataclasses import dataclass
from typing import NotRequired, TypedDict

# ── Keys of a rollout's `Experience.info`, each with a (1,) float tensor ──

FAILED = "reward_failed"  # sampling -> experience, update: 1.0 where the reward is only a placeholder
ENGINE = "engine"  # sampling -> experience: the number of the engine that sampled it, or:
OLDER = -1  # sampled before the last weight synchronization
FILLER = "filler"  # experience -> update: 1.0 for a row without weight, which completes an optimizer step


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


class LedgerState(TypedDict):
    """Accounts of a run in a checkpoint: dispatched = trained + filtered + failed + waiting, in rollouts.

    Example: {"dispatched": 64, "trained": 48, "filtered": 8, "failed": {"timeout": 4}, "waiting": 4}.
    """

    dispatched: int
    trained: int
    filtered: int
    failed: dict[str, int]  # by reason
    waiting: int


class RunState(TypedDict):
    """State of a run in a checkpoint, beside weights and optimizer; a plain dictionary, as DeepSpeed stores it.

    Example, after step 7 of a run of 40 prompts an episode, 8 a step: {"episode": 1, "consumed": 16, "global_step": 7,
    "total_consumed_prompts": 56, "ledger": {...}, "waiting": [], "waiting_episode": 1, "kl": 0.01, "fingerprint":
    {"seed": {"train.seed": 42}, ...}}. The states of the best evaluation (`run.saving.Best.states`) come with them.
    """

    episode: int  # from 0
    consumed: int  # prompts of the episode
    global_step: int
    total_consumed_prompts: int
    ledger: NotRequired[LedgerState]
    waiting: NotRequired[list[dict]]  # fields of the `Experience` of each rollout for a later step
    waiting_episode: NotRequired[int]  # of the oldest of them
    kl: NotRequired[float]  # the coefficient
    fingerprint: NotRequired[dict[str, dict[str, object]]]  # `checkpoints.fingerprint.Fingerprint.topics`
