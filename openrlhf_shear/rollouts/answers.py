r"""Where in a response the final answer begins, so that no window of a diagnosis contains it.

The answer is looked for as the graders look for it: what the last `\boxed{}` holds, else what follows the last `####`,
else the last "answer is" or "answer:", else a `#` and a number at the very end, else the last number, behind any fenced
program. A marked answer begins at the *first* mark of any kind that gives the same answer: from there on it can be read
off. A response without a mark that ends with its program has none: the program is its reasoning.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from openrlhf_shear.rewards.responses import answer_of
from openrlhf_shear.rollouts.tokens import token_at

_MARKS = (re.compile(r"\\f?box(?:ed)?\s*+\{?"), re.compile(r"####"), re.compile(r"(?i)\banswer(?: is|\s*:)\s*:?"))
_LONE_HASH = re.compile(r"#\s*[-+]?[0-9][0-9.,]*$")
_NUMBER = re.compile(r"[-+]?\$?[0-9](?:[0-9,.]*[0-9])?")
_NOT_ANSWER = " \t\n$*_\\({["
_ENDS = re.compile(r"[}\n]|\$|\.(?:\s|$)")


def answer_start(tokens: Sequence[str]) -> int | None:
    r"""The token in which the final answer, with its mark, begins; None if there is none.

    Args:
        tokens: (T,) texts; joined, they are the response.
    """
    at = _character(answer_of("".join(tokens), ""))
    return None if at is None else token_at(tokens, at)


def _character(response: str) -> int | None:
    marked = [[(match.start(), _given(response, match.end())) for match in mark.finditer(response)] for mark in _MARKS]
    final = next((marks[-1][1] for marks in marked if marks), None)
    if final is not None:
        return min(start for marks in marked for start, given in marks if given == final)
    lone = _LONE_HASH.search(response)
    if lone:
        return lone.start()
    program = response.rfind("```") + 1
    numbers = list(_NUMBER.finditer(response, program))
    return numbers[-1].start() if numbers else None


def _given(response: str, at: int) -> str:
    """The beginning of what a mark gives, to the end of its line, box or sentence."""
    text = response[at : at + 200].lstrip(_NOT_ANSWER)
    end = _ENDS.search(text)
    return (text[: end.start()] if end else text).strip()
