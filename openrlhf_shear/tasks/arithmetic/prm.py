"""A small process reward model in the format of Qwen2.5-Math-PRM-7B, with random weights: for tests and smokes."""

from pathlib import Path

from tokenizers.pre_tokenizers import ByteLevel
from transformers import Qwen2Config, Qwen2Tokenizer

from openrlhf_shear.credit.prm.model import Qwen2ForProcessRewardModel
from openrlhf_shear.credit.prm.steps import SEPARATOR
from openrlhf_shear.tasks.arithmetic.policy import save, seeded

MAX_POSITIONS = 4096
_SPECIAL = ("<|im_start|>", "<|im_end|>", SEPARATOR)
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer() -> Qwen2Tokenizer:
    """Build a tokenizer of one token a byte, with Qwen's special tokens and a chat template like Qwen's."""
    tokenizer = Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate([*_SPECIAL, *sorted(ByteLevel.alphabet())])},
        merges=[],
        unk_token=None,
        pad_token="<|im_end|>",
        eos_token="<|im_end|>",
        model_max_length=MAX_POSITIONS,
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(_SPECIAL)})
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def write_prm(folder: str | Path, seed: int = 0) -> Path:
    """Write the model's folder; the same seed gives the same weights, large enough for scores to differ."""
    tokenizer = build_tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=MAX_POSITIONS,
        initializer_range=0.3,
    )
    return save(seeded(Qwen2ForProcessRewardModel, config, seed), tokenizer, folder)
