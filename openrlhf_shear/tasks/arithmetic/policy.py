"""Small policy of the arithmetic task: an ordinary Hugging Face folder of a 0.64M-parameter Qwen2 model."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)
from transformers.utils import logging

from openrlhf_shear.tasks.arithmetic.problems import EOS, PAD, STEPS, UNK, alphabet

MAX_POSITIONS = 512  # the longest text, of 12 operations, has about 300 tokens


def build_tokenizer(operations: int = STEPS) -> Qwen2Tokenizer:
    """Build Qwen2's byte-level tokenizer without merges: one token a character of `alphabet(operations)`.

    Transformers 5 loads no other class next to a Qwen2 model. The class has no unknown token: characters outside the
    alphabet, spaces too, are dropped silently. A prompt of this policy is therefore the bare prompt of a problem.
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
    """Build a random model of three layers of width 128: about 0.64M parameters."""
    return build_qwen2(tokenizer, seed, layers=3, width=128)


def build_qwen2(tokenizer: PreTrainedTokenizerBase, seed: int, layers: int, width: int) -> Qwen2ForCausalLM:
    """Build a random Qwen2 model that samples at temperature 1.

    Its heads have size 32, which vLLM's CPU attention supports; its inner width is 3 * `width`.
    """
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        **special,
    )
    model = seeded(Qwen2ForCausalLM, config, seed)
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, **special)
    return model


def seeded(kind: type, config: PretrainedConfig, seed: int) -> PreTrainedModel:
    """Make a model with random weights, the same for the same seed; torch's random state is unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return kind(config)


def save(model: PreTrainedModel, tokenizer: Qwen2Tokenizer, out: str | Path) -> Path:
    """Write the folder: configuration, tokenizer, bfloat16 safetensors."""
    out = Path(out)
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)  # only the owner can read the written file; shared installations need all
    return out


def load_policy(folder: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model (float32 weights, evaluation mode) and the tokenizer of a policy's folder."""
    logging.disable_progress_bar()  # otherwise each loaded policy shows a bar
    # In sampling, and for short sequences, eager attention is faster than fused attention in bfloat16 on a CPU.
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    # AutoTokenizer loads Qwen2's tokenizer for every Qwen2 model, even if the folder names another.
    named = json.loads(Path(folder, "tokenizer_config.json").read_text(encoding="utf-8")).get("tokenizer_class")
    kind = AutoTokenizer if named == "Qwen2Tokenizer" else PreTrainedTokenizerFast
    return model.eval(), kind.from_pretrained(folder)


@contextmanager
def fused_attention(model: PreTrainedModel) -> Iterator[None]:
    """Attend with torch's fused kernel, which is faster in passes over whole sequences of some hundred tokens."""
    model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation("eager")
