"""The gold answers of a label."""

import ast
import contextlib
import json
import math
from numbers import Real

import regex as re

_NULLS = ("nan", "null", "none", "n/a", "na", "nil", "undefined", "unknown", "?", "-", "inf")
_FORMULA = re.compile(r"\$.*?\$|\\\(.*?\\\)|\\[A-Za-z]++(?:\s*+\{[^{}]*+\})*+", re.DOTALL)
_WORD = re.compile(r"(?<![A-Za-z])[A-Za-z]{2,}")
_COUNTED = re.compile(r"[-+]?\$?[0-9][0-9,.]*+\s++(?!(?:and|or)\b)[A-Za-z][A-Za-z ]*+\.?")


def golds_of(label: object) -> str | list[str]:
    """Return the gold answer of a label, or a list of golds of which any will do.

    A label is a text, a number or a list of them. A list may be JSON.

    >>> golds_of(27.0), golds_of("[1, 2]"), golds_of('["1/2", "0.5"]')
    ('27.0', '[1, 2]', ['1/2', '0.5'])

    Raises:
        ValueError: it is no answer: null, NaN, a truth value, an object, nothing, or a list that holds such a value.
    """
    if isinstance(label, str) and label.startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            written = json.loads(label)
            # A list of numbers or lists is an interval, a point or a matrix.
            if not written or not all(isinstance(item, list) or _is_number(item) for item in written):
                label = written
    if isinstance(label, list | tuple) and label:
        return [_gold(gold) for gold in label]
    return _gold(label)


def doubt(gold: str) -> str | None:
    """Return what makes a gold unlikely to be an answer alone: "null", "list", "sentence" or "words"; else None.

    Such a gold equals itself, but hardly any right response.

    >>> [doubt(text) for text in ("nan", "['34', '68/2']", "The answer is 34", "34 apples", "34 cm", "even")]
    ['null', 'list', 'sentence', 'words', None, None]
    """
    from openrlhf_shear.rewards.maths.numbers import read_number
    from openrlhf_shear.rewards.maths.text import tidy

    text = gold.strip()
    if text.casefold() in _NULLS:
        return "null"
    if text.startswith("["):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            held = ast.literal_eval(text)
            return "list" if isinstance(held, list) and any(isinstance(item, str) for item in held) else None
    words = len(_WORD.findall(_FORMULA.sub(" ", text)))
    if words >= 3 and re.search(r"[0-9]", text):
        return "sentence"
    return "words" if words and _COUNTED.fullmatch(text) and read_number(tidy(text)) is None else None


def _gold(gold: object) -> str:
    if isinstance(gold, str) and gold.strip():
        return gold
    if _is_number(gold):
        return str(gold)
    got = "an empty text" if isinstance(gold, str) else f"{gold!r:.80}"
    raise ValueError(f"a label must be an answer, a text or a number: got {got}; use e.g. '42'")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
