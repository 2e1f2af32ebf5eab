"""The arithmetic task's small policy: an ordinary Hugging Face folder of a 0.64M-parameter Qwen2 model."""

from pathlib import Path

import torch
from transformers import (
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)

from openrlhf_shear.arithmetic.problems import EOS, PAD, STEPS, UNK, alphabet

MAX_POSITIONS = 512  # 418 tokens are the most: a prompt of 12 operations and its response with 8 fillers a step


def build_tokenizer(operations: int = STEPS) -> Qwen2Tokenizer:
    """Qwen2's byte-level tokenizer without merges: one token a character of `alphabet(operations)`, decoded exactly.

    Transformers 5 loads no other class next to a Qwen2 model. That class has no unknown token: characters outside the
    alphabet, spaces too, are dropped without a word, so a prompt of this policy is the bare prompt of a problem.

    Raises ValueError: `operations` is not in 1..12.
    """
    tokens = [PAD, EOS, UNK, *alphabet(operations)]
    return Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[],
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        padding_side="left",
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2ForCausalLM:
    """Three layers of width 128, four heads of 32 (a head size vLLM's CPU attention has), about 0.64M parameters."""
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        **special,
    )
    model = seeded(Qwen2ForCausalLM, config, seed)
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, **special)
    return model


def seeded(kind: type, config: PretrainedConfig, seed: int) -> PreTrainedModel:
    """A model with random weights, the same for the same seed; leaves torch's random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind(config)


def save(model: PreTrainedModel, tokenizer: Qwen2Tokenizer, out: str | Path) -> Path:
    """Write the folder: configuration, tokenizer, bfloat16 safetensors."""
    out = Path(out)
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)  # written for its owner only, which fails in a shared installation
    return out
