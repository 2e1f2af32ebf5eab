"""Small policies of the bookkeeping task: Hugging Face folders of a Qwen2 model with a word tokenizer."""

from itertools import chain

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from openrlhf_shear.tasks.arithmetic.policy import MAX_POSITIONS, build_qwen2
from openrlhf_shear.tasks.arithmetic.problems import EOS, PAD, UNK
from openrlhf_shear.tasks.bookkeeping.forms import AND, GAINS, LOSES, OTHER, PLAIN, SO, Form
from openrlhf_shear.tasks.bookkeeping.stories import MONTHS, MOST, NAMES, VERBS

SIZES = {"small": (4, 192), "large": (6, 256)}  # layers, width: 1.9M and 5.1M parameters
WORDS = (  # of the plain form; further forms add words behind them
    *(*NAMES, *MONTHS, *VERBS, *map(str, range(MOST + 1)), *LOSES, *GAINS, *SO, *AND, OTHER),
    *("to", "from", ":", "."),
)


def build_tokenizer(form: Form = PLAIN) -> PreTrainedTokenizerFast:
    """Build a tokenizer of one token a word; a space separates two words."""
    words = dict.fromkeys(chain((PAD, EOS, UNK), WORDS, form.words))
    tokens = {word: i for i, word in enumerate(words)}
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


@torch.no_grad()
def take_over(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    start: Qwen2ForCausalLM,
    known: PreTrainedTokenizerFast,
    form: Form,
) -> None:
    """Give the model the weights of `start`, a policy of the same size whose tokenizer has perhaps fewer words.

    New words keep their random embeddings, on the scale of the known embeddings. A new side, such as `sheds`, starts as
    the sum of that and the plain form's embedding for the side (`loses`).
    """
    weights, name = dict(start.state_dict()), "model.embed_tokens.weight"
    old, rows = weights[name], model.get_input_embeddings().weight
    rows *= old.std() / rows.std()
    old_ids, ids = known.get_vocab(), tokenizer.get_vocab()
    for template in form.templates:
        for plain, side in zip((*LOSES, *GAINS), (*template.loses, *template.gains), strict=True):
            if side not in old_ids:
                rows[ids[side]] += old[old_ids[plain]]
    for word, i in old_ids.items():
        rows[ids[word]] = old[i]
    model.load_state_dict(weights | {name: rows, "lm_head.weight": rows})
