"""Small tokenizers that put special tokens in front of texts, as Llama 3's and Mistral's do."""

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

BOS, EOS = "<|bos|>", "<|eos|>"
CHAT = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}[assistant]"


def _bytes(processed: str) -> Tokenizer:
    """A token a byte, as Llama 3's without its merges."""
    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return _finished(made, processed)


def _marked(processed: str) -> Tokenizer:
    """A token a character, and a mark at the beginning of a text, as Mistral's without its merges."""
    vocabulary = {letter: i for i, letter in enumerate(["<unk>", "▁", *map(chr, range(33, 127)), "\n"])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    return _finished(made, processed)


def _finished(made: Tokenizer, processed: str) -> Tokenizer:
    made.add_special_tokens([BOS, EOS])
    ids = [(token, made.token_to_id(token)) for token in (BOS, EOS)]
    made.post_processor = processors.TemplateProcessing(single=processed, special_tokens=ids)
    return made


def write_tokenizer(folder: Path, kind: str, chat: str | None = None) -> Path:
    """A folder that AutoTokenizer loads; `kind` is one of `KINDS`."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=KINDS[kind](), bos_token=BOS, eos_token=EOS, pad_token=EOS)
    tokenizer.chat_template = chat
    tokenizer.save_pretrained(folder)
    return folder


KINDS = {
    "begins": lambda: _bytes(f"{BOS} $A"),  # Llama 3, Gemma
    "begins and ends": lambda: _bytes(f"{BOS} $A {EOS}"),
    "begins, marked": lambda: _marked(f"{BOS} $A"),  # Mistral
    "nothing": lambda: _bytes("$A"),
}
