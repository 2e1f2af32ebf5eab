r"""Equality of numbers and expressions without a tolerance. Runs inside a jail only.

Two numbers are equal if their difference cannot be told from 0 with 60 digits, and twice those of all powers and
integers in both. sympy's `evalf` works with the precision that cancellation needs, and says when a value has no digit
that it is sure of. Two expressions are equal if they are equal at fixed points, where they are real.
"""

import math
from functools import lru_cache

import sympy
from math_verify import grader

_DIGITS, _MOST_DIGITS = 60, 5000
# Values of the variables: large, small and negative ones. No two variables of a point have the same value.
_POINTS = (
    lambda k: sympy.Rational(1009 + 211 * k, 809),
    lambda k: sympy.Rational(577 + 101 * k, 3001 + 7 * k),
    lambda k: sympy.Rational((-1) ** k * -(1013 + 307 * k), 701),
)


@lru_cache(16)
def equal(gold: sympy.Expr, answer: sympy.Expr) -> bool | None:
    """Return whether two expressions are equal; None if a value of one is no complex number."""
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    if not symbols:
        return is_zero(gold - answer, _digits(gold, answer))
    decided = None
    for point in _POINTS:
        values = {symbol: point(k) for k, symbol in enumerate(symbols)}
        wanted, other = (sympy.sympify(tree.subs(values)) for tree in (gold, answer))
        if not (gold.has(sympy.I) or answer.has(sympy.I)) and not (_real(wanted) or _real(other)):
            continue  # roots of negative numbers
        decided = is_zero(wanted - other, _digits(gold, answer))
        if not decided:
            return decided
    return decided


def _real(number: sympy.Expr) -> bool:
    imaginary = number.evalf(15).as_real_imag()[1]
    return imaginary == 0 or imaginary._prec <= 1


def is_zero(number: sympy.Expr, digits: int) -> bool | None:
    """Return whether a number has no digit that is sure, though `digits` were tried.

    None: it has no value, or would need more digits than are tried.
    """
    if number.is_Rational:
        return number == 0
    value = number.evalf(2, maxn=min(digits, _MOST_DIGITS))
    parts = value.as_real_imag() if value.is_number else ()
    if not parts or not all(part.is_Float or part.is_zero for part in parts):
        return None
    unsure = all(part == 0 or part._prec <= 1 for part in parts)
    return None if unsure and digits > _MOST_DIGITS and value != 0 else unsure


def _digits(*trees: sympy.Basic) -> int:
    """Return the decimal digits to compare with."""
    total = 0.0
    for tree in trees:
        for node in sympy.preorder_traversal(tree):
            if node.is_Rational:
                total += math.log10(abs(node.p) + 1) + math.log10(node.q)
            elif node.is_Pow and node.exp.is_Rational:
                total += float(min(abs(node.exp), _MOST_DIGITS)) * max(1.0, _size(node.base))
    return _DIGITS + 2 * math.ceil(total)


def _size(base: sympy.Expr) -> float:
    return sum(math.log10(abs(node.p) + node.q) for node in sympy.preorder_traversal(base) if node.is_Rational)


def use_in_math_verify() -> None:
    """Make math-verify compare with `equal`: itself it rounds, in numbers and in all that is made of them."""
    theirs = grader.sympy_symbolic_eq

    def numeric(gold, answer, *_: int) -> bool:
        if isinstance(gold, sympy.MatrixBase) and isinstance(answer, sympy.MatrixBase):
            same_shape = gold.shape == answer.shape
            return same_shape and all(map(numeric, gold.flat(), answer.flat()))
        return _both(gold, answer) and bool(equal(gold, answer))

    def symbolic(gold, answer) -> bool:
        decided = _both(gold, answer) and equal(gold, answer) is not None
        return not decided and theirs(gold, answer)

    grader.sympy_numeric_eq, grader.sympy_symbolic_eq = numeric, symbolic


def _both(gold, answer) -> bool:
    return isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr)
