r"""Points that tell expressions with pieces apart: |x-5| from 5-x, \lfloor n/2\rfloor from \lfloor n/3\rfloor.

Two expressions with pieces can agree on a long interval, and differ beyond. So they are computed at some hundred
points: near 0, near the numbers in them, and far out on both sides. A variable of integers takes only integers. Values
are fractions where possible, and floats else; where they differ, `exact` decides.
"""

import cmath
import math
import operator
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product

import sympy
from functions import gcd, lcm

Point = dict[sympy.Symbol, Fraction | int]

_MOST_POINTS, _MOST_NUMBERS = 160, 5
_NEAR = (
    *range(-13, 14),
    *(Fraction(2 * k + 1, 2) for k in range(-9, 9)),
    *(Fraction(k, 3) for k in (-7, -1, 1, 4, 11)),
)
_FAR = tuple(sign * size for size in (17, 22, 29, 36, 61, 100, 210, 997, 5040) for sign in (1, -1))
_LARGEST_POWER = 6000


def _power(base: Fraction | float, exponent: Fraction | float) -> Fraction | float:
    if exponent != int(exponent):
        return math.pow(base, exponent)
    if abs(exponent) > _LARGEST_POWER:
        raise OverflowError
    return (Fraction(base) if isinstance(base, int) else base) ** int(exponent)


def _of_integers(function: Callable[..., int]) -> Callable[..., int]:
    def computed(*parts: Fraction | float) -> int:
        if any(part != int(part) for part in parts):
            raise ValueError("it is computed for integers only")
        return function(*map(int, parts))

    return computed


_OF_NATURALS = {
    sympy.factorial: _of_integers(math.factorial),
    sympy.binomial: _of_integers(math.comb),
    gcd: _of_integers(math.gcd),
    lcm: _of_integers(math.lcm),
}
_STEPS = {sympy.floor: math.floor, sympy.ceiling: math.ceil, sympy.Mod: operator.mod}
_BENT = {
    sympy.Abs: abs,
    sympy.sign: lambda value: (value > 0) - (value < 0),
    sympy.Max: max,
    sympy.Min: min,
    sympy.log: lambda value, *base: math.log(value, *base),
    **{getattr(sympy, name): getattr(math, name) for name in ("asin", "acos", "atan")},
}
_SMOOTH = {
    sympy.Add: lambda *terms: sum(terms),
    sympy.Mul: lambda *factors: math.prod(factors),
    sympy.Pow: _power,
    sympy.UnevaluatedExpr: lambda value: value,
    **{getattr(sympy, name): getattr(math, name) for name in ("exp", "sin", "cos", "tan")},
}
_CONDITIONS = {
    **{sympy.And: lambda *parts: all(parts), sympy.Or: lambda *parts: any(parts), sympy.Eq: operator.eq},
    **{getattr(sympy, name): getattr(operator, name.lower()) for name in ("Ne", "Lt", "Gt", "Le", "Ge")},
}
_COMPUTED = _OF_NATURALS | _STEPS | _BENT | _SMOOTH | _CONDITIONS
_RISING = (sympy.exp, sympy.factorial, sympy.binomial)
_PIECES = (*_OF_NATURALS, *_STEPS, *_BENT, sympy.Piecewise, sympy.acot, sympy.asec, sympy.acsc)


class Sample:
    """Points to compare two expressions at.

    Attributes:
        integers: the variables that take only integers: those of functions of integers, and beside floors, remainders
            and alternating signs those with a name of integers, such as n.
        pieces: whether an expression has pieces, so that a few points do not decide.
        cases: whether an expression is by cases, so that it has no other values.
    """

    def __init__(self, gold: sympy.Expr, answer: sympy.Expr) -> None:
        nodes = [node for tree in (gold, answer) for node in sympy.preorder_traversal(tree)]
        powers = [node for node in nodes if isinstance(node, sympy.Pow)]
        rising = [power.exp for power in powers if power.exp.free_symbols]
        self._symbols = sorted(gold.free_symbols | answer.free_symbols, key=str)
        self._naturals = _variables(nodes, tuple(_OF_NATURALS))
        self.integers = self._naturals | _variables(nodes, (sympy.Mod,))
        if _variables(nodes, tuple(_STEPS)) or any(power.base.is_negative and power.exp in rising for power in powers):
            self.integers |= {symbol for symbol in self._symbols if symbol.name[0] in "jklmnJKLMN"}
        rooted = any(power.exp.is_Rational and not power.exp.is_Integer for power in powers)
        self.pieces = bool(self.integers) or rooted or bool(_variables(nodes, _PIECES))
        self.cases = any(isinstance(node, sympy.Piecewise) for node in nodes)
        rising += [part for node in nodes if isinstance(node, _RISING) for part in node.args]
        towers = any(_rises(inner) for part in rising for inner in sympy.preorder_traversal(part))
        self._reach = 4 if towers else 40 if rising else max(_FAR)
        numbers = {abs(Fraction(node.p, node.q)) for node in nodes if node.is_Rational}
        self._numbers = sorted(numbers - {0, 1})[:_MOST_NUMBERS]

    def points(self) -> Iterator[Point]:
        """Yield the points, the same for the same expressions."""
        pools = {symbol: self._values(symbol) for symbol in self._symbols}
        if len(pools) == 1:
            ((symbol, values),) = pools.items()
            yield from ({symbol: value} for value in values)
            return
        draw = random.Random(0)
        for _ in range(_MOST_POINTS):
            yield {symbol: draw.choice(values) for symbol, values in pools.items()}

    def _values(self, symbol: sympy.Symbol) -> list[Fraction | int]:
        values = [*_NEAR, *_FAR]
        for number in self._numbers:
            values += (number, number - 1, number + 1, number - Fraction(1, 3), number + Fraction(1, 3), -number)
        for first, second in product(self._numbers, repeat=2):
            values += (first + second, first - second, first * second, first / second)
        if symbol in self.integers:
            values = [int(value) for value in values if value == int(value)]
        if symbol in self._naturals:
            values = [value for value in values if value > 0]
        return list(dict.fromkeys(value for value in values if abs(value) <= self._reach))[:_MOST_POINTS]


def _variables(nodes: list[sympy.Basic], kinds: tuple[type, ...]) -> set[sympy.Symbol]:
    return set().union(*(node.free_symbols for node in nodes if isinstance(node, kinds)))


def _rises(node: sympy.Basic) -> bool:
    return isinstance(node, _RISING) or bool(isinstance(node, sympy.Pow) and node.exp.free_symbols)


def compiled(tree: sympy.Basic) -> Callable[[Point], Fraction | float]:
    """Return a function that computes a tree. It raises TypeError where an unknown function has no value."""
    if tree.is_Symbol:
        return operator.itemgetter(tree)
    if isinstance(tree, sympy.Piecewise):
        pieces = [(compiled(condition), compiled(value)) for value, condition in tree.args]
        return lambda point: next((value for holds, value in pieces if holds(point)), _nowhere)(point)
    if not tree.args:
        number = bool(tree) if tree in (sympy.true, sympy.false) else _number(tree)
        return lambda _: number
    function = _COMPUTED.get(tree.func, lambda *values: _number(tree.func(*values)))
    parts = [compiled(part) for part in tree.args]
    return lambda point: function(*[part(point) for part in parts])


def _nowhere(_: Point) -> float:
    raise ValueError("no piece is defined here")


def _number(tree: sympy.Expr) -> Fraction | float | complex:
    """Return the number that a tree is. Raises TypeError: it is none."""
    if tree.is_Rational:
        return int(tree) if tree.is_Integer else Fraction(tree.p, tree.q)
    number = complex(tree)
    return number if number.imag else number.real


def value(tree: Callable[[Point], Fraction | float], point: Point) -> Fraction | float | None:
    """Return the value of a compiled tree at a point; None if it has none that is real and not too large."""
    try:
        number = tree(point)
    except (ArithmeticError, TypeError, ValueError):
        return None
    return number if abs(number) < math.inf else None


def close(first: Fraction | float, second: Fraction | float) -> bool:
    """Return whether two values are equal as far as they are computed."""
    inexact = not (isinstance(first, (int, Fraction)) and isinstance(second, (int, Fraction)))
    return cmath.isclose(first, second, rel_tol=1e-9, abs_tol=1e-9) if inexact else first == second
