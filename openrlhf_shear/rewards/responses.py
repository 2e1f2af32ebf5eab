"""The response in a decoded query: OpenRLHF hands a reward prompt and response as one text."""

import re

_LONGEST_TOKEN = 72
_SPECIAL_END = re.compile(r"(?:<\|[^<>|]{1,64}\|>|</?s>|<(?:eos|bos|pad|unk|end_of_turn)>)$")


def response_of(query: str, prompt: str) -> str:
    """The part of a decoded query that follows the prompt.

    Decoding can change the front of a prompt, so the search falls back to the last place where the prompt, or its last
    32 characters, occur, and then to the whole query.
    """
    if query.startswith(prompt):
        return query[len(prompt) :]
    for part in (prompt, prompt[-32:]):
        at = query.rfind(part)
        if at >= 0:
            return query[at + len(part) :]
    return query


def answer_of(query: str, prompt: str) -> str:
    """The response in a query, without the special tokens it ends on: OpenRLHF decodes those too.

    >>> answer_of("What is 6 * 7? #### 42<|im_end|><|endoftext|>", "What is 6 * 7?")
    ' #### 42'
    """
    response = response_of(query, prompt).rstrip()
    while special := _SPECIAL_END.search(response, max(0, len(response) - _LONGEST_TOKEN)):
        response = response[: special.start()].rstrip()
    return response
