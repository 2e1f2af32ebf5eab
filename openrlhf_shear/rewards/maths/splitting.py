"""Splitting of a tidy text at separators outside of brackets, and a pattern of the names of values."""

from collections.abc import Iterator

import regex as re

_FIRST = "alpha|beta|gamma|delta|(?:var)?epsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|(?:var)?phi"
_OTHERS = "chi|psi|omega|ell|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega"
GREEK = rf"\\(?:{_FIRST}|{_OTHERS})(?![A-Za-z])"  # without pi, which is a number
LETTER = rf"(?:{GREEK}|[A-Za-z])(?:_(?:\{{[^{{}}]*+\}}|[0-9A-Za-z]))?+'*+"
SEPARATORS = (",", ";", '"and"', '"or"', "and", "or")

_PIECE = re.compile(
    r'\\[{}]|\\[A-Za-z]++|\\.|[()\[\]{},;:=]|"(?:and|or)"|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])', re.DOTALL
)
_OPENING, _CLOSING = ("(", "[", "{", r"\{"), (")", "]", "}", r"\}")


def split(text: str, separators: tuple[str, ...] = SEPARATORS) -> list[str]:
    """Split at the separators outside of brackets. The list has a single item if brackets do not match."""
    items, start, depth = [], 0, 0
    for piece, depth in _levels(text):
        if depth < 0:
            break
        if depth == 0 and piece[0] in separators:
            items.append(text[start : piece.start()].strip())
            start = piece.end()
    items.append(text[start:].strip())
    return [item for item in items if item] if depth == 0 else [text]


def inside(text: str) -> tuple[str, list[str]] | None:
    """Return the outer brackets of a text and the items in them; None if the text is not a single bracket."""
    closing = next((piece for piece, depth in _levels(text) if depth == 0), None)
    if closing is None or closing.end() != len(text):
        return None
    first = r"\{" if text.startswith(r"\{") else text[0]
    brackets = first[-1] + closing[0][-1]
    if brackets not in ("()", "[]", "[)", "(]", "{}") or first == "{":
        return None
    return brackets, split(text[len(first) : closing.start()])


def _levels(text: str) -> Iterator[tuple[re.Match[str], int]]:
    """Yield the brackets, commands and separators of a text, each with the depth of brackets after it."""
    depth = 0
    for piece in _PIECE.finditer(text):
        depth += (piece[0] in _OPENING) - (piece[0] in _CLOSING)
        yield piece, depth
