"""Scores of the evaluation rollouts that upstream samples during training (`--eval.dataset`)."""

from collections.abc import Sequence

from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_shear.evaluation.by_set import Sampled, scores_by_set
from openrlhf_shear.train.sampling.samples import is_failed


def scores_of(samples: Sequence[Experience], sources: Sequence[str], size: int) -> dict[str, float]:
    """Return the metrics of evaluation rollouts.

    Args:
        samples: the rollouts in row order, `size` per row.
        sources: the set of each row.
    """
    sampled = [
        Sampled(
            reward=None if is_failed(sample) else sample.rewards.item(),
            length=int(sample.response_length),
            truncated=bool(sample.truncated),
        )
        for sample in samples
    ]
    return scores_by_set(sources, [sampled[start : start + size] for start in range(0, len(sampled), size)])
