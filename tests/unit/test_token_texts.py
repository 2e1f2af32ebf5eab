"""Token texts: joined they are the response, and no piece of a character shows as one of its own."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import openrlhf_shear.arithmetic
from openrlhf_shear.rollouts.tokens import token_texts

TEXTS = [
    "So 6 * 7 = 42.",
    "  two  spaces \n\n and , a comma",
    "naïve 😀😀 café — 数学 x² ≤ 3",
    "👩‍👩‍👧 family",
    "😀",
    "",
]


def byte_level() -> PreTrainedTokenizerFast:
    """One token a byte, but for "ab", " c" and a token that is a character and the first byte of another."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: i for i, piece in enumerate([*alphabet, "ab", "Ġc", "xð"])}
    merges = [("a", "b"), ("Ġ", "c"), ("x", "ð")]
    made = Tokenizer(models.BPE(vocabulary, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>")


def metaspace(byte_fallback: bool = True) -> PreTrainedTokenizerFast:
    """As Llama 2's: a space is part of the word behind it, unknown characters are tokens of their bytes."""
    words = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "▁two", "▁words", "▁", *"abcdefghijklmnopqrstuvwxyz"]
    vocabulary = [(word, -float(len(word) < 3)) for word in words]
    made = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=byte_fallback))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made)


def whole(tokenizer, ids) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("make", [byte_level, metaspace])
@pytest.mark.parametrize("text", TEXTS)
def test_joined_they_are_the_response(make, text):
    tokenizer = make()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    texts = token_texts(tokenizer, ids)
    assert len(texts) == len(ids) and "".join(texts) == whole(tokenizer, ids)
    assert not any("\ufffd" in piece for piece in texts)
    if make is byte_level:
        assert "".join(texts) == text


def test_a_character_belongs_to_its_last_token():
    tokenizer = byte_level()
    ids = tokenizer("ab😀 cx😀")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids)[5:7] == ["Ġc", "xð"]
    assert token_texts(tokenizer, ids) == ["ab", "", "", "", "😀", " c", "x", "", "", "😀"]


def test_spaces_before_words_are_kept():
    tokenizer = metaspace()
    ids = tokenizer("two words two")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["▁two", "▁words", "▁two"]
    assert token_texts(tokenizer, ids) == ["two", " words", " two"]  # the first one's is the tokenizer's own


def test_special_tokens_are_there():
    tokenizer = byte_level()
    ids = [*tokenizer("ab😀")["input_ids"], tokenizer.eos_token_id]
    assert token_texts(tokenizer, ids)[-2:] == ["😀", "<|end|>"]


def test_a_response_that_ends_in_the_middle_of_a_character():
    tokenizer = byte_level()
    ids = tokenizer("ab😀")["input_ids"][:-1]
    assert token_texts(tokenizer, ids) == ["ab", "", "", "\ufffd"]


def test_long_runs_of_bytes_that_are_no_text_take_little_work():
    """Nowhere near the square of the length."""
    tokenizer = byte_level()
    (lead,) = tokenizer.convert_tokens_to_ids(["ð"])
    ids = tokenizer("é")["input_ids"] + [lead] * 4000 + tokenizer("ab")["input_ids"]
    expected, decoded, plain = whole(tokenizer, ids), [], tokenizer.decode

    def counted(part, **options):
        decoded.append(len(part))
        return plain(part, **options)

    tokenizer.decode = counted
    texts = token_texts(tokenizer, ids)
    assert sum(decoded) < 70 * len(ids)
    assert len(texts) == len(ids) and "".join(texts) == expected


def test_the_built_in_policys_characters_are_its_tokens():
    tokenizer = AutoTokenizer.from_pretrained(Path(openrlhf_shear.arithmetic.__file__).parent / "shipped_policy")
    text = "a37+45=82;~b7x82=74;#74"
    ids = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
    assert token_texts(tokenizer, ids) == [*text, tokenizer.eos_token]
