"""Steps of a response, mapped to the policy's tokens by character offsets, and the conversation that holds them.

The conversation is Qwen2.5-Math-PRM's: a chat whose answer holds the steps, each scored at the separator after it.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from openrlhf_shear.config import PrmConfig


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

    def __init__(self, tokenizer, separator: str = "\n\n"):
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


SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
SEPARATOR = "<extra_0>"


@dataclass(frozen=True)
class Conversation:
    """Token ids of a conversation, and its separators by position.

    A response may contain the text "<extra_0>", which is encoded as ordinary text.
    """

    ids: tuple[int, ...]
    separators: tuple[int, ...]  # positions in `ids` of the scored steps; a long conversation has further steps


class ConversationEncoder:
    """Encoder of conversations, up to the last separator that fits into `max_len` tokens.

    A causal model's scores do not depend on what follows that separator.

    Raises ValueError: the model's `tokenizer` has no separator token or no chat template.
    """

    def __init__(self, tokenizer, max_len: int):
        self._separator = tokenizer.convert_tokens_to_ids(SEPARATOR)
        has_separator = SEPARATOR in tokenizer.get_vocab()
        for holds, what in ((has_separator, f"token {SEPARATOR}"), (tokenizer.chat_template, "chat template")):
            if not holds:
                raise ValueError(
                    f"prm.model_name_or_path: the tokenizer of {tokenizer.name_or_path} has no {what}; use a model in "
                    "the format of Qwen/Qwen2.5-Math-PRM-7B"
                )
        self._tokenizer, self._max_len = tokenizer, max_len
        self.pad_id: int = tokenizer.pad_token_id or 0

    def encode(self, problem: str, steps: Sequence[str]) -> Conversation:
        """Encode the conversation of one rollout; it has no separators if the first step does not fit."""
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": problem}]
        before = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids: list[int] = self._tokenizer(before, add_special_tokens=False)["input_ids"]
        separators: list[int] = []
        for step in steps:
            text = self._tokenizer(step, add_special_tokens=False, split_special_tokens=True)["input_ids"]
            if len(ids) + len(text) + 1 > self._max_len:
                break
            ids += text
            separators.append(len(ids))
            ids.append(self._separator)
        return Conversation(tuple(ids), tuple(separators))


def load_encoder(config: PrmConfig) -> ConversationEncoder:
    """Load the encoder with the model's tokenizer: a quick way to find a wrong model (ValueError) before loading it."""
    from transformers import AutoTokenizer

    return ConversationEncoder(AutoTokenizer.from_pretrained(config.model_name_or_path), config.max_len)
