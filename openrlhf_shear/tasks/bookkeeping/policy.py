"""Small policies of the bookkeeping task: Hugging Face folders of a Qwen2 model with a word tokenizer."""

from itertools import chain

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from openrlhf_shear.tasks.arithmetic.policy import MAX_POSITIONS, build_qwen2
from openrlhf_shear.tasks.arithmetic.problems import EOS, PAD, UNK
from openrlhf_shear.tasks.bookkeeping.entries import AND, OTHER, SIDES, SO
from openrlhf_shear.tasks.bookkeeping.stories import MONTHS, MOST, NAMES, VERBS

SIZES = {"small": (4, 192), "large": (6, 256)}  # layers, width: 1.9M and 5.1M parameters
WORDS = (*NAMES, *MONTHS, *VERBS, *map(str, range(MOST + 1)), *SIDES, *SO, *AND, OTHER, "to", "from", ":", ".")


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer of one token a word; a space separates two words."""
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
    """Build a random model of a size in `SIZES`."""
    return build_qwen2(tokenizer, seed, *SIZES[size])
