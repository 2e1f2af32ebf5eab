"""Filler rows without weight, which complete the last optimizer step of an episode.

DeepSpeed makes an optimizer step of a fixed number of micro-batches, and every micro-batch is a collective of all
ranks. If rollouts do not fill the last step, fillers of two tokens without an action complete it. A loss is a sum over
action tokens, divided by their number in the optimizer step, so fillers do not change it.
"""

from collections.abc import Sequence
from dataclasses import fields

import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_shear.train.carriers import FILLER
from openrlhf_shear.train.experience.schedule import update_shares


def shared_out(
    experiences: list[Experience], batch: int, micro_batch: int, ranks: Sequence[int], pad_token: int, dynamic: bool
) -> list[Experience]:
    """Share out the rows of `experiences` for an update; return experiences that are already even unchanged.

    Args:
        batch: rows per optimizer step.
        micro_batch: rows per returned experience.
        ranks: the number of ranks of each updated model; the first decides which rank gets which rows.
        dynamic: whether upstream deals the rows to ranks again, by length.
    """
    sizes = [len(experience.sequences) for experience in experiences]
    if sum(sizes) % batch == 0 and (dynamic or all(_even(sizes, count) for count in ranks)):
        return experiences
    rows = [row_of(experience, i) for experience in experiences for i in range(len(experience.sequences))]
    rows.sort(key=lambda row: row.index[0])
    shares = update_shares(len(rows), 1 if dynamic else ranks[0], batch)
    filler = None
    if len(rows) % batch:
        for row in rows:
            row.info[FILLER] = torch.zeros(1)
        filler = _filler(rows[0])
    shares = [[filler if i is None else rows[i] for i in share] for share in shares]
    pieces = [share[i : i + micro_batch] for share in shares for i in range(0, len(share), micro_batch)]
    return [Experience.concat_experiences(piece, pad_token) for piece in pieces]


def without_fillers(experiences: Sequence[Experience]) -> list[Experience]:
    """Return the experiences without fillers; if there are any, as single rows."""
    if FILLER not in experiences[0].info:
        return list(experiences)
    return [
        row_of(experience, i)
        for experience in experiences
        for i, out in enumerate(experience.info[FILLER].bool().tolist())
        if not out
    ]


def row_of(experience: Experience, i: int) -> Experience:
    """Return row i of a batched experience, as a batch with a single row."""

    def pick(value):
        if isinstance(value, dict):
            return {name: pick(item) for name, item in value.items()}
        return value[i : i + 1] if isinstance(value, torch.Tensor | list) else value

    return Experience(**{f.name: pick(getattr(experience, f.name)) for f in fields(Experience)})


def _filler(row: Experience) -> Experience:
    """Make a filler: the first two tokens of a row, without an action.

    With images it keeps all tokens, because under ZeRO-3 every rank has to see the images.
    """
    seen = any(row.mm_train_inputs)
    length = row.sequences.shape[1] if seen else 2
    changed = {"images": [None], "index": [-1]}
    for f in fields(Experience):
        value = getattr(row, f.name)
        if isinstance(value, torch.Tensor) and Experience.is_step_tensor_field(f.name):
            changed[f.name] = value[:, : length if value.shape == row.sequences.shape else length - 1].clone()
    if not seen:
        changed["attention_mask"] = torch.ones_like(changed["attention_mask"])
    changed["action_mask"] = torch.zeros_like(changed["action_mask"])
    changed["total_length"] = changed["attention_mask"].sum(1).to(row.total_length.dtype)
    others = {f.name: getattr(row, f.name) for f in fields(Experience) if f.name not in changed}
    return Experience(**others | changed | {"info": row.info | {FILLER: torch.ones(1)}})


def _even(sizes: Sequence[int], ranks: int) -> bool:
    """Return whether upstream's chunks of batches (`async_run_method_batch`) give every rank equally many rows."""
    if len(sizes) < ranks:
        return False
    chunk = -(-len(sizes) // ranks)
    return len({sum(sizes[rank * chunk : (rank + 1) * chunk]) for rank in range(ranks)}) == 1
