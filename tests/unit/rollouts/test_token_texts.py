"""Token texts: joined they are the response, and a part of a character is never shown as a character."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from openrlhf_shear.rollouts.columns import token_texts

TEXTS = ["  two  spaces \n\n and , a comma: 6 * 7 = 42.", "naïve 😀😀 café — 数学 x² ≤ 3", "👩‍👩‍👧 family", ""]


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
    texts = ["ab", "", "", "", "😀", " c", "x", "", "", "😀"]
    assert token_texts(tokenizer, [*ids, tokenizer.eos_token_id]) == [*texts, "<|end|>"]
    assert token_texts(tokenizer, ids[:4]) == ["ab", "", "", "\ufffd"]  # it ends in the middle of a character


def test_spaces_before_words_are_kept():
    tokenizer = metaspace()
    ids = tokenizer("two words two")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["▁two", "▁words", "▁two"]
    assert token_texts(tokenizer, ids) == ["two", " words", " two"]  # the first one's is the tokenizer's own


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
