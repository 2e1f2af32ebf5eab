"""The text of every token, so that joined they are the response.

Byte-level tokenizers split rare characters over several tokens, none of which has a text of its own; others drop the
space before a token that is decoded alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

_UNKNOWN = "\ufffd"  # what bytes decode to that are no character, or not yet
_LONGEST = 32  # tokens of a run that ends with no character; then it is taken as it is


def token_texts(tokenizer, ids: Sequence[int]) -> list[str]:
    """(T,) texts of the tokens, special ones included, that joined are the decoded text.

    A character that several tokens make is the last one's; the others' texts are empty.

    Args:
        tokenizer: of transformers.
        ids: (T,).
    """

    def decode(part: Sequence[int]) -> str:
        return tokenizer.decode(part, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    ids = list(ids)
    alone = {token: decode([token]) for token in set(ids)}
    texts = [alone[token] for token in ids]
    return texts if "".join(texts) == decode(ids) else _in_turn(ids, decode)


def _in_turn(ids: list[int], decode) -> list[str]:
    """Each token after those before it. Only a few are decoded at a time: the window starts one whole piece back."""
    texts: list[str] = []
    start = whole = sent = 0  # the window, its tokens whose text is out, and the characters that are out behind these
    for end in range(1, len(ids) + 1):
        text = decode(ids[start:end])[len(decode(ids[start:whole])) :]
        cut = end - whole >= _LONGEST
        done = cut or not text.endswith(_UNKNOWN) or end == len(ids)
        ready = text if done else text.rstrip(_UNKNOWN)
        texts.append(ready[sent:])
        start, whole, sent = (end if cut else whole, end, 0) if done else (start, whole, len(ready))
    return texts


def token_at(tokens: Sequence[str], character: int) -> int | None:
    """The token that holds a character of the joined text; None behind its end."""
    return next((i for i, end in enumerate(accumulate(map(len, tokens))) if end > character), None)
