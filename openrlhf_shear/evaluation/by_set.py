"""Scores of a training run's evaluation prompts (`--eval.dataset`), by set."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Sampled:
    """A rollout of an evaluation prompt."""

    reward: float | None  # None where it failed
    length: int  # tokens that the policy wrote
    truncated: bool  # whether it ended at the token limit


def scores_by_set(sources: Sequence[str], groups: Sequence[Sequence[Sampled]]) -> dict[str, float]:
    """Return the metrics of an evaluation, by OpenRLHF's names.

    A prompt belongs to the set of its row, so sets may share prompts, and a set may hold a prompt twice. Rollouts
    without a reward are left out, and so are prompts without any reward, as in `cli.evaluate`. With rewards of 0 and 1,
    `passK` is the share of prompts that one of K rollouts answers, and `pass1` is the share of correct rollouts.

    Worked example: sources ["amc", "math"] and groups with rewards [1, 0] and [0, 0] give eval_amc_pass2 1.0,
    eval_amc_pass1 0.5, eval_math_pass2 0.0 and eval_math_pass1 0.0.

    Args:
        sources: the set of each prompt, in the order of the rows.
        groups: the K rollouts of each prompt.
    """
    sets: dict[str, list[Sequence[Sampled]]] = {}
    for source, group in zip(sources, groups, strict=True):
        sets.setdefault(source, []).append(group)
    metrics: dict[str, float] = {}
    for source, members in sets.items():
        metrics |= {f"eval_{source}_{name}": value for name, value in (_scores(members) | _sizes(members)).items()}
    if groups:
        metrics |= {f"eval_{name}": value for name, value in _sizes(groups).items()}
        metrics["eval_num_samples"] = float(sum(map(len, groups)))
    return metrics


def _scores(groups: Sequence[Sequence[Sampled]]) -> dict[str, float]:
    """Return a set's passK and pass1; a prompt that lost a reward is in no `passK` of K > 1."""
    count = len(groups[0])
    rewards = [[sampled.reward for sampled in group if sampled.reward is not None] for group in groups]
    best = [max(given) for given in rewards if len(given) == count]
    means = [sum(given) / len(given) for given in rewards if given]
    return {f"pass{k}": sum(of) / len(of) for k, of in ((count, best), (1, means)) if of}


def _sizes(groups: Sequence[Sequence[Sampled]]) -> dict[str, float]:
    rollouts = [sampled for group in groups for sampled in group]
    return {
        "response_length_mean": sum(sampled.length for sampled in rollouts) / len(rollouts),
        "truncated_rate": sum(sampled.truncated for sampled in rollouts) / len(rollouts),
    }
