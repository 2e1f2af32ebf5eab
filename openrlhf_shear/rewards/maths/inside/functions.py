r"""Functions that math-verify's grammar lacks: \max, \min, \gcd, \lcm, \sgn and cases, in each other and in the rest.

Each is parsed alone, and stands in the text as a letter until the rest is parsed.
"""

import math
import re
from collections.abc import Callable

import sympy
from latex2sympy2_extended.logic import And

_CALL = re.compile(r"\\(max|min|gcd|lcm|sgn|cases)\s*(?=\(|\\?\{)")
_PIECE = re.compile(r"\\?[{}]|[()\[\],]")
_JOINED = re.compile(r",(?![^(\[]*[)\]])|(?<![A-Za-z])and(?![A-Za-z])")
_EITHER = re.compile(r"(?<![A-Za-z])or(?![A-Za-z])")

Parse = Callable[[str, dict[str, sympy.Basic]], sympy.Basic]
"""From a text, and the trees of the letters in it, to its tree. Raises ValueError: it cannot be parsed."""


class gcd(sympy.Function):
    """Greatest common divisor of integers; sympy's takes that of polynomials."""

    reduce = math.gcd

    @classmethod
    def eval(cls, *parts: sympy.Expr) -> sympy.Expr | None:
        return sympy.Integer(cls.reduce(*map(int, parts))) if all(part.is_Integer for part in parts) else None


class lcm(gcd):
    """Least common multiple of integers."""

    reduce = math.lcm


_FUNCTIONS = {"max": sympy.Max, "min": sympy.Min, "gcd": gcd, "lcm": lcm, "sgn": sympy.sign}


def with_letters(text: str, parse: Parse) -> tuple[str, dict[str, sympy.Basic]]:
    """Return a tidy text with letters for its functions, and the trees of the letters."""
    letters: dict[str, sympy.Basic] = {}
    while calls := [*_CALL.finditer(text)]:
        call = calls[-1]  # its arguments have no call
        parts, end = _arguments(text, call.end())
        if call[1] == "cases":
            parts = [part.strip()[1:-1].replace(r"\eq ", "=") for part in parts]
            pairs = zip(parts[::2], parts[1::2], strict=True)
            tree = sympy.Piecewise(
                *((parse(part, letters), _condition(condition, letters, parse)) for part, condition in pairs),
                evaluate=False,
            )
        else:
            tree = _FUNCTIONS[call[1]](*(parse(part, letters) for part in parts), evaluate=False)
        letters[f"q_{{uv{len(letters)}}}"] = tree
        text = f"{text[: call.start()]}Q_{{v{len(letters) - 1}}}{text[end:]}"
    return text, letters


def _arguments(text: str, start: int) -> tuple[list[str], int]:
    """Return the arguments in the bracket that opens at `start`, and where it ends. Raises ValueError: it does not."""
    parts, depth, begin = [], 0, start
    for piece in _PIECE.finditer(text, start):
        depth += 0 if piece[0] == "," else -1 if piece[0][-1] in ")]}" else 1
        if depth == 0 or (depth == 1 and piece[0] == ","):
            parts.append(text[begin : piece.start()])
        if depth == 0:
            return parts, piece.end()
        begin = piece.end() if depth == 1 and piece[0][-1] in "({," else begin
    raise ValueError("a bracket is not closed")


def _condition(text: str, letters: dict[str, sympy.Basic], parse: Parse) -> sympy.Basic:
    r"""Return the condition of a piece (see `text.pieces`): `x\lt 2 or x\geq 5`, `n \mod 2\eq 0`, `\else`."""
    if r"\else" in text:
        return sympy.true
    either = []
    for part in _EITHER.split(text):
        both = [parse(relation, letters) for relation in _JOINED.split(part)]
        both = [part for tree in both for part in (tree.args if isinstance(tree, And) else (tree,))]
        both = [tree.rhs.as_relational(tree.lhs) if isinstance(tree.args[1], sympy.Set) else tree for tree in both]
        either.append(sympy.And(*both))
    return sympy.Or(*either)
