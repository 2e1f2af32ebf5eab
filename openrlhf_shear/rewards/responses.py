"""Responses in decoded queries: OpenRLHF gives a reward the prompt and the response as one text."""

import re

_LONGEST_TOKEN = 72
# Each has a single "<" or "[", in front. DeepSeek's have full-width bars.
_SPECIAL = re.compile(
    r"<([|\uff5c])[^<>|\uff5c]{1,64}\1>|</?s>|<(?:eos|bos|pad|unk|eod|end_of_turn|end_of_utterance)>|\[\|endofturn\|\]"
)


def response_of(query: str, prompt: str) -> str:
    """Return the part of a decoded query that follows the prompt.

    Decoding can change the front of a prompt. The search then falls back to the last occurrence of the prompt, then of
    its last 32 characters, then to the whole query.
    """
    if query.startswith(prompt):
        return query[len(prompt) :]
    for part in (prompt, prompt[-32:]):
        at = query.rfind(part)
        if at >= 0:
            return query[at + len(part) :]
    return query


def answer_of(query: str, prompt: str) -> str:
    """Return the response in a query, without the special tokens at its end: OpenRLHF decodes those too.

    >>> answer_of("What is 6 * 7? #### 42<|im_end|><|endoftext|>", "What is 6 * 7?")
    ' #### 42'
    """
    response = response_of(query, prompt)
    end = _end_of_text(response, len(response))
    while (start := max(response.rfind(mark, max(0, end - _LONGEST_TOKEN), end) for mark in "<[")) >= 0:
        if not _SPECIAL.fullmatch(response, start, end):
            break
        end = _end_of_text(response, start)
    return response[:end]


def _end_of_text(text: str, end: int) -> int:
    """Return where `text[:end].rstrip()` ends, without a copy: a response may be a million special tokens."""
    while end and text[end - 1].isspace():
        end -= 1
    return end
