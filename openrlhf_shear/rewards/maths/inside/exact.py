r"""Equality of numbers and expressions without a tolerance. Runs inside a jail only.

Two numbers are equal if their difference cannot be told from 0 with 60 digits, and twice those of all powers and
integers in both. sympy's `evalf` works with the precision that cancellation needs, and says when a value has no digit
that it is sure of. Two expressions are equal if they are equal at fixed points, where they are real. Those with pieces,
such as |x|, are also compared at the many points of `sampling`.
"""

import math
from functools import lru_cache

import sympy
from math_verify import grader
from sampling import Sample, close, compiled, value

_DIGITS, _MOST_DIGITS = 60, 5000
# Values of the variables: large, small and negative ones. No two variables of a point have the same value.
_POINTS = (
    lambda k: sympy.Rational(1009 + 211 * k, 809),
    lambda k: sympy.Rational(577 + 101 * k, 3001 + 7 * k),
    lambda k: sympy.Rational((-1) ** k * -(1013 + 307 * k), 701),
)
_FEWEST, _MOST_DOUBTS = 3, 8  # points that decide, and points at which floats or fractions differ


@lru_cache(16)
def equal(gold: sympy.Expr, answer: sympy.Expr) -> bool | None:
    """Return whether two expressions are equal; None if they have no values that decide."""
    symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
    digits = _digits(gold, answer)
    if not symbols:
        return is_zero(gold - answer, digits)
    sample = Sample(gold, answer)
    if sample.pieces and evaluated(gold) == evaluated(answer):
        return True
    decided = None
    for point in () if sample.integers else _POINTS:
        same = _equal_at(gold, answer, {symbol: point(k) for k, symbol in enumerate(symbols)}, digits)
        if same is False:
            return False
        decided = decided or same
    return _equal_on(sample, gold, answer, digits) if sample.pieces else decided


def _equal_on(sample: Sample, gold: sympy.Expr, answer: sympy.Expr, digits: int) -> bool | None:
    """Return whether two expressions are equal at the points of a sample; None if fewer than a few decide."""
    trees, agreed, doubts = (compiled(gold), compiled(answer)), 0, _MOST_DOUBTS
    for point in sample.points():
        wanted, other = (value(tree, point) for tree in trees)
        if wanted is None and other is None:
            continue
        if sample.cases and None in (wanted, other):
            return False
        if None not in (wanted, other) and close(wanted, other) and (agreed >= _FEWEST or not sample.integers):
            agreed += 1
        elif doubts:
            doubts -= None in (wanted, other) or not close(wanted, other)
            same = _equal_at(gold, answer, {symbol: sympy.Rational(at) for symbol, at in point.items()}, digits)
            if same is False:
                return False
            agreed += bool(same)
    return True if agreed >= _FEWEST else None


def _equal_at(gold: sympy.Expr, answer: sympy.Expr, values: dict[sympy.Symbol, sympy.Expr], digits: int) -> bool | None:
    """Return whether two expressions are equal at a point; None if it does not decide.

    A point does not decide if neither expression is real there. Nor does it if they differ only because roots and
    logarithms of negative numbers have several values: \\sqrt{a}\\sqrt{b} is not \\sqrt{ab} below 0.
    """
    wanted, other = (sympy.sympify(tree.subs(values)) for tree in (gold, answer))
    if gold.has(sympy.I) or answer.has(sympy.I):
        return is_zero(wanted - other, digits)
    if any(number.has(sympy.nan, sympy.zoo, sympy.oo) for number in (wanted, other)):
        endless = [number == sympy.zoo for number in (wanted, other)]  # (-3)! where the other has a value
        return False if sum(endless) == 1 and gold.has(sympy.factorial) and not other.has(sympy.nan) else None
    real = [_real(wanted), _real(other)]
    if not any(real):
        return None
    same = is_zero(wanted - other, digits)
    several = sum(number.is_negative for number in values.values()) > 1
    if same is False and (all(real) or several) and (_leaves_reals(gold, values) or _leaves_reals(answer, values)):
        return None
    return same


def _leaves_reals(tree: sympy.Expr, values: dict[sympy.Symbol, sympy.Expr]) -> bool:
    """Return whether a root or logarithm of a negative number is part of a tree at a point."""
    rooted = (node.args[0] for node in sympy.preorder_traversal(tree) if is_root(node) or isinstance(node, sympy.log))
    return any(base.subs(values).is_negative for base in rooted)


def is_root(node: sympy.Basic) -> bool:
    return isinstance(node, sympy.Pow) and node.exp.is_Rational and not node.exp.is_Integer


def evaluated(node: sympy.Basic) -> sympy.Basic:
    """Return a node with sympy's own evaluation, which collects like terms and factors; brackets stay."""
    return node if not node.args else node.func(*map(evaluated, node.args))


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
                parts = [part for part in sympy.preorder_traversal(node.base) if part.is_Rational]
                size = sum(math.log10(abs(part.p) + part.q) for part in parts)
                total += float(min(abs(node.exp), _MOST_DIGITS)) * max(1.0, size)
    return _DIGITS + 2 * math.ceil(total)


def use_in_math_verify() -> None:
    """Make math-verify compare with `equal`: itself it rounds, in numbers and in all that is made of them."""
    theirs = grader.sympy_symbolic_eq

    def decided(*both) -> bool | None:
        return equal(*both) if all(isinstance(each, sympy.Expr) for each in both) else None

    def numeric(gold, answer, *_: int) -> bool:
        if isinstance(gold, sympy.MatrixBase) and isinstance(answer, sympy.MatrixBase):
            same_shape = gold.shape == answer.shape
            return same_shape and all(map(numeric, gold.flat(), answer.flat()))
        return bool(decided(gold, answer))

    def symbolic(gold, answer) -> bool:
        return decided(gold, answer) is None and theirs(gold, answer)

    grader.sympy_numeric_eq, grader.sympy_symbolic_eq = numeric, symbolic
