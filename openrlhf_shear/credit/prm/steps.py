"""Steps of a response, found in its text and mapped to the policy's tokens by character offsets."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol


class Tokenizer(Protocol):
    """Methods that a tokenizer must have here."""

    def encode(self, text: str, **kwargs) -> list[int]: ...

    def decode(self, ids: Sequence[int], **kwargs) -> str: ...


@dataclass(frozen=True)
class Steps:
    """K steps of a response of T tokens: `ends[k]` is the token that ends step k, and `ends[-1]` is T - 1."""

    texts: tuple[str, ...]  # without surrounding white space
    ends: tuple[int, ...]


class StepSplitter:
    """Splitter of responses at a separator, by default blank lines.

    A step ends with the token that holds the last character of a separator. A run of that character belongs to the
    separator, so that three line breaks are one blank line. The last step ends with the last token. A piece without
    text belongs to the step after it, or, at the end, to the step before it. The same holds for the remainder of a
    step whose text lies entirely in tokens of other steps.

    Example, one character a token: "a\\n\\nbc<eos>" -> texts ("a", "bc"), ends (2, 5).
    """

    def __init__(self, tokenizer: Tokenizer, separator: str = "\n\n"):
        self._tokenizer = tokenizer
        self._separator = re.compile(re.escape(separator) + re.escape(separator[-1]) + "*")
        self._pieces: dict[int, str] = {}
        # Some tokenizers drop the space of a text's first token.
        self._before = tokenizer.encode("a", add_special_tokens=False)
        self._skip = len(self._decode(self._before))

    def split(self, ids: Sequence[int]) -> Steps:
        """Split one response, given its tokens, special ones included; a response without text has no steps.

        Each token is decoded separately for its length only; the text of a step is decoded as a whole.
        """
        pieces = [self._piece(token) for token in ids]
        text, token_ends = "".join(pieces), list(accumulate(map(len, pieces)))
        cuts = [0]
        for match in self._separator.finditer(text):
            if text[cuts[-1] : match.end()].strip() and text[match.end() :].strip():
                cuts.append(match.end())
        ends = [bisect_left(token_ends, cut) for cut in cuts[1:]] + [len(ids) - 1]
        starts = [0, *(end + 1 for end in ends[:-1])]
        steps: list[tuple[str, int]] = []
        for start, end in zip(starts, ends, strict=True):
            step_text = self._decode(ids[start : end + 1]).strip()
            if step_text:
                steps.append((step_text, end))
            elif steps:
                steps[-1] = (steps[-1][0], end)
        return Steps(tuple(text for text, _ in steps), tuple(end for _, end in steps))

    def _piece(self, token: int) -> str:
        if token not in self._pieces:
            self._pieces[token] = self._decode([*self._before, token])[self._skip :]
        return self._pieces[token]

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
