"""Rewards of rollouts: what an experience carries of a verdict, and which groups dynamic filtering accepts.

The values that a reward logs beside itself (`extra_logs`) are kept apart from the metrics of training by their names.
"""

import math
from collections.abc import Sequence

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.config.rules import RULES
from openrlhf_shear.rewards.verdict import Failure, Verdict, of_numbers
from openrlhf_shear.train.carriers import FAILED, Accounts

logger = init_logger(__name__)
VERDICT = "verdict"  # key of a response (`engine`)
# Names without a section: OpenRLHF's, and five of the fork's. Every other metric of the fork has a section.
NAMES = frozenset(
    (
        # carried by a rollout to the update
        *("reward", "rewards", "score", "scores", "truncated", "response_length", "total_length", "filler"),
        *("response_clip_ratio", "reward_failed", "kl", "logprobs_diff", "return"),
        *("group_reward_std", "ppo_kl", "ppo_clip_ratio", "is_filter_ratio"),
        *("engine", "vllm_kl", "vllm_gap", "vllm_gap_max"),
        # reported by updates
        *("policy_loss", "entropy_loss", "actor_lr", "actor_grad_norm", "critic_loss", "critic_lr", "values"),
        *("critic_grad_norm", "num_action_tokens", "_num_samples", "_num_action_tokens", "_weights"),
        # reported for a step
        *("dynamic_filtering_pass_rate", "generated_samples", "global_step"),
    )
)
SECTIONS = frozenset(("rollout", "timing", "update", "ledger", "nonfinite", "engine", "prm", *RULES))
PREFIX = "extra_"


def renamed(name: str) -> str:
    """Return the name under which an entry of `extra_logs` is logged: unchanged, unless a metric of training has it.

    >>> renamed("turns"), renamed("score"), renamed("timing/tool"), renamed("tool/kl")
    ('turns', 'extra_score', 'extra_timing_tool', 'tool/kl')
    """
    section, slash, _ = name.partition("/")
    taken = name in NAMES or (slash and section in SECTIONS)
    return PREFIX + name.replace("/", "_") if taken else name


def is_failed(sample: Experience) -> bool:
    """Return whether the reward of a single rollout is only a placeholder."""
    return FAILED in sample.info and bool(sample.info[FAILED].item())


def reward_of(sample: Experience) -> float | None:
    """Return the reward of a single rollout; None if it failed."""
    return None if is_failed(sample) else sample.rewards.item()


def complete_info(samples: Sequence[Experience]) -> None:
    """Fill in missing keys of `info` with the mean of the other rollouts; a failed reward has no extra logs.

    Batches of rollouts with different keys would have columns of different lengths.
    """
    for name in {name for sample in samples for name in sample.info}:
        known = [sample.info[name].float() for sample in samples if name in sample.info]
        if len(known) < len(samples):
            mean = torch.cat(known).mean(0, keepdim=True)
            for sample in samples:
                sample.info.setdefault(name, mean)


def verdict_of(response: dict) -> Verdict:
    """Return the verdict on a response; an agent's executor has no `VERDICT`, but numbers."""
    if VERDICT in response:
        return response[VERDICT]
    logs = response.get("extra_logs") or {}
    if response.get("reward") is None:
        return Verdict(None, failure=Failure.NO_REWARD, detail="the executor returned none", extra_logs=logs)
    numbers = {name: float(response[name]) for name in ("reward", "scores") if response.get(name) is not None}
    for name, value in numbers.items():
        if not math.isfinite(value):
            return Verdict(None, failure=Failure.NOT_FINITE, detail=f"{name} is {response[name]}", extra_logs=logs)
    return of_numbers(numbers["reward"], numbers.get("scores", numbers["reward"]), logs)


def with_numbers(response: dict, verdict: Verdict, counts: Accounts) -> dict:
    """Return a response with its verdict's numbers, as upstream reads them; a failed reward is a placeholder of 0.

    `extra_logs` that clash with a metric of training get another name. Each renaming, and the first absurd reward, is
    logged once.
    """
    for name in verdict.extra_logs:
        if renamed(name) != name and counts.first_of(f"extra_logs {name}"):
            logger.warning(f"extra_logs has {name}, which is a metric of training; it is logged as {renamed(name)}")
    if verdict.is_questionable and counts.first_of("questionable"):
        logger.warning(f"a reward of {verdict.reward:g} is questionable; is it meant? (said once)")
    logs = {renamed(name): value for name, value in verdict.extra_logs.items()}
    return response | {"reward": verdict.reward or 0.0, "scores": verdict.score or 0.0, "extra_logs": logs}


class DynamicFilter:
    """Filter that accepts groups whose mean score lies inside `--algo.dynamic_filtering_range`."""

    def __init__(self, bounds: tuple[float, float], size: int, counts: Accounts):
        """
        Args:
            bounds: the range, without its ends.
            size: prompts of a batch; as many rejected in a row get a warning.
            counts: where rejected rollouts are counted.
        """
        self._low, self._high = bounds
        self._size, self._counts = size, counts
        self._rejected: list[float] = []  # mean scores of the prompts rejected in a row

    def accepts(self, group: Sequence[Experience]) -> bool:
        """Return whether the mean of a group's known scores lies inside the range; count a rejected group."""
        scores = [sample.scores[0].item() for sample in group if not is_failed(sample) and sample.scores is not None]
        if not scores and any(sample.scores is None for sample in group):
            return True  # a reward model will score them
        if not scores:
            return False
        mean = sum(scores) / len(scores)
        if self._low < mean < self._high:
            self._rejected = []
            return True
        self._counts.filtered += len(scores)
        self._rejected.append(mean)
        means = f"their mean scores are {min(self._rejected):g} to {max(self._rejected):g}"
        self._counts.filtered_scores = means
        if len(self._rejected) % self._size == 0:
            outside = f"outside --algo.dynamic_filtering_range {self._low:g} {self._high:g}"
            logger.warning(f"{len(self._rejected)} prompts in a row were filtered: {means}, {outside}")
        return False
