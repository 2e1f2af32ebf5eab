"""A process reward model's scores of the steps of a diagnosis' rollouts, computed in one process, and their table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas
from tqdm import tqdm

from openrlhf_shear.config import PrmConfig
from openrlhf_shear.rollouts.record import Rollout, TableError, float64, read_table, write_table

KIND = "steps"


@dataclass(frozen=True)
class ScoredStep:
    """A step of a rollout."""

    # problem, sample: which rollout; `group` and `sample` in rollouts.parquet
    problem: str
    sample: int
    step: int  # from 0
    # first, last: its tokens, the last one included
    first: int
    last: int
    score: float64  # the probability that the step is right


def scored_steps(
    rollouts: Sequence[Rollout], problems: Mapping[str, str], tokenizer, config: PrmConfig
) -> list[ScoredStep]:
    """Return the steps of the rollouts that have weights, without those that exceed the model's length.

    Runs in bfloat16 on the first GPU where there is one, else in float32 on the CPU.

    Args:
        problems: the text of each problem, by the rollouts' `group`.
        tokenizer: the policy's.

    Raises:
        ValueError: the model is no process reward model of the known format.
    """
    import torch

    from openrlhf_shear.credit.prm.conversation import load_encoder
    from openrlhf_shear.credit.prm.model import collate, load_prm
    from openrlhf_shear.credit.prm.steps import StepSplitter

    encoder, splitter = load_encoder(config), StepSplitter(tokenizer, config.step_end)
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    model = load_prm(config.model_name_or_path, dtype, "sdpa").to(device)
    weighed = [rollout for rollout in rollouts if rollout.weights]
    cut = [splitter.split(rollout.token_ids) for rollout in weighed]
    read = [encoder.encode(problems[r.group], steps.texts) for r, steps in zip(weighed, cut, strict=True)]
    order = sorted((i for i, item in enumerate(read) if item.separators), key=lambda i: len(read[i].ids))
    scores: dict[int, list[float]] = {}
    size = config.micro_batch_size
    for at in tqdm(range(0, len(order), size), desc="step scores", unit="batch", disable=None):
        batch = order[at : at + size]
        with torch.no_grad():
            step_scores = iter(model(**collate([read[i] for i in batch], encoder.pad_id, device)).tolist())
        scores |= {i: [next(step_scores) for _ in read[i].separators] for i in batch}
    steps = []
    for i in sorted(scores):
        first = 0
        for step, (last, score) in enumerate(zip(cut[i].ends, scores[i], strict=False)):
            steps.append(ScoredStep(weighed[i].group, weighed[i].sample, step, first, last, score))
            first = last + 1
    return steps


def write_steps(path: Path, steps: Sequence[ScoredStep], settings: Mapping, config: PrmConfig) -> Path:
    """Write steps; `settings` are those of the rollouts' table."""
    prm = {"prm": config.model_name_or_path, "separator": config.separator}
    return write_table(path, KIND, ScoredStep, steps, {"rollouts": dict(settings), **prm})


def read_steps(path: Path, settings: Mapping) -> pandas.DataFrame | None:
    """Return the columns of `ScoredStep`; None without a table, or if its rollouts have other settings."""
    try:
        table, metadata = read_table(path, KIND)
    except TableError:
        return None
    return table.to_pandas() if metadata["rollouts"] == settings else None
