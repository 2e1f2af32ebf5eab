"""The ledger task's small policies: Hugging Face folders of a Qwen2 model with a word tokenizer."""

from itertools import chain

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from openrlhf_shear.arithmetic.policy import seeded
from openrlhf_shear.arithmetic.problems import EOS, PAD, UNK
from openrlhf_shear.ledger.entries import AND, OTHER, SIDES, SO
from openrlhf_shear.ledger.stories import MONTHS, MOST, NAMES, VERBS

SIZES = {"small": (4, 192), "large": (6, 256)}  # layers, width: 1.9M and 5.1M parameters
MAX_POSITIONS = 512
WORDS = (*NAMES, *MONTHS, *VERBS, *map(str, range(MOST + 1)), *SIDES, *SO, *AND, OTHER, "to", "from", ":", ".")


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word; words are apart by one space."""
    tokens = {word: i for i, word in enumerate(chain((PAD, EOS, UNK), WORDS))}
    inner = Tokenizer(models.WordLevel(tokens, unk_token=UNK))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        padding_side="left",
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int, size: str = "small") -> Qwen2ForCausalLM:
    """Heads of 32, as many as the width takes."""
    layers, width = SIZES[size]
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
