"""Qwen2.5-Math-PRM's model: a Qwen2 decoder with a two-layer head of two classes, read at the separators.

Loading needs no code from the checkpoint: `model.*` is the decoder, `score.0` and `score.2` the head.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen2Config, Qwen2Model, Qwen2PreTrainedModel

from openrlhf_shear.credit.prm.steps import Conversation


class Qwen2ForProcessRewardModel(Qwen2PreTrainedModel):
    """Model of the probability that each step is right."""

    def __init__(self, config: Qwen2Config):
        super().__init__(config)
        self.model = Qwen2Model(config)
        self.score = nn.Sequential(
            nn.Linear(config.hidden_size, config.hidden_size), nn.ReLU(), nn.Linear(config.hidden_size, 2)
        )
        self.post_init()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, separators: torch.Tensor) -> torch.Tensor:
        """Return (N,) float32 probabilities, class 1 of a softmax over the 2 classes, in the order of `separators`.

        Args:
            input_ids, attention_mask: (B, S), padded on the right.
            separators: (N, 2) int64: row and position of each separator.
        """
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        logits = self.score(hidden[separators[:, 0], separators[:, 1]])
        return logits.float().softmax(-1)[:, 1]


def load_prm(path: str, dtype: torch.dtype, attn_implementation: str) -> Qwen2ForProcessRewardModel:
    """Load the model of a folder or hub id, for inference.

    Raises ValueError: weights are missing; transformers would fill them with random numbers.
    """
    config = Qwen2Config.from_pretrained(path)
    model, info = Qwen2ForProcessRewardModel.from_pretrained(
        path,
        config=config,
        dtype=dtype,
        attn_implementation=attn_implementation,
        ignore_mismatched_sizes=True,  # reported below
        output_loading_info=True,
    )
    wrong = sorted(info["missing_keys"]) + sorted(key for key, *_ in info["mismatched_keys"])
    if wrong:
        raise ValueError(
            f"prm.model_name_or_path: {path} lacks {len(wrong)} weights of a process reward model, e.g. {wrong[0]}; "
            "use a model in the format of Qwen/Qwen2.5-Math-PRM-7B"
        )
    return model.eval().requires_grad_(False)


def collate(conversations: Sequence[Conversation], pad_id: int, device: torch.device | str) -> dict[str, torch.Tensor]:
    """Make the arguments of `forward` for a micro-batch."""
    rows = [torch.tensor(conversation.ids) for conversation in conversations]
    places = [(i, position) for i, conversation in enumerate(conversations) for position in conversation.separators]
    batch = {
        "input_ids": pad_sequence(rows, batch_first=True, padding_value=pad_id),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in rows], batch_first=True),
        "separators": torch.tensor(places, dtype=torch.int64).reshape(-1, 2),
    }
    return {name: tensor.to(device) for name, tensor in batch.items()}
