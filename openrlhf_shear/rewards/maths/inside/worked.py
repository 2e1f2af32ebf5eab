"""Check that an answer is worked out as far as its gold; else a policy would learn to box the question.

Both are trees as they were written (math-verify's parser evaluates nothing), known to be equal. The work left in a tree
is counted, and an answer may leave no more than its gold does. Another way to write the same counts nothing: order,
signs, a number times a sum, a fraction or several over a common denominator, a root in a denominator.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import gcd

import sympy
from exact import evaluated, is_root
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational
from sympy.matrices.expressions.matexpr import MatrixExpr

_UNDONE = (sympy.Derivative, sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit, MatrixExpr)
_LARGEST_GCD = 80  # leaves of a fraction that is searched for common factors


@dataclass
class Work:
    """Work left in a tree.

    Attributes:
        pending: operations that evaluation would remove. They are like terms, numbers to multiply, powers of powers,
            and roots with square factors; also common factors of a fraction, functions of known value, and matrices to
            add or multiply.
        inner, outer: products of sums that are not multiplied out, within a sum, and outside of any.
        monomials: of those outside, products of a single sum.
        denominators: different denominators that are no numbers.
    """

    pending: int = 0
    inner: int = 0
    outer: int = 0
    monomials: int = 0
    denominators: int = 0

    @property
    def products(self) -> int:
        """Products of several sums."""
        return self.inner + self.outer - self.monomials


def worked_out(gold: sympy.Basic, answer: sympy.Basic, in_question: Callable[[], bool] | None = None) -> bool:
    """Return whether the answer leaves no more to do than the gold it equals.

    No operation may be pending that is not pending in the gold. Where the question asks for another form, the answer
    must be factored where the gold is, be multiplied out where the gold is, and have no more denominators. Where the
    question is not known, it may not have more products or denominators than the gold.

    Args:
        asked: returns whether a formula of the question equals the gold; None if the question is not known.
    """
    if not _as_solved(gold, answer):
        return False
    wanted, left = work_of(gold), work_of(answer)
    if left.pending > wanted.pending:
        return False
    if not getattr(gold, "free_symbols", set()) - {sympy.Symbol("i")}:
        more = left.products > wanted.products
        return not more or (in_question is not None and not in_question())
    more = left.inner > wanted.inner or left.outer > wanted.outer or left.denominators > wanted.denominators
    if in_question is None:
        return not more
    return not (more or (left.inner, left.outer) != (wanted.inner, wanted.outer)) or not in_question()


def work_of(tree: sympy.Basic) -> Work:
    """Return the work left in a tree; of a tuple, a set, a matrix or an equation, in all of its parts."""
    work = Work()
    denominators: set[sympy.Expr] = set()
    for expression in _expressions(tree):
        denominators.update(_denominators(expression))
        work.pending += sum(map(_pending, _nodes(expression)))
        _count_form(expression, work, within_sum=False)
    work.denominators = len(denominators)
    return work


def _as_solved(gold: sympy.Basic, answer: sympy.Basic) -> bool:
    """If the gold says what a variable is (`y = ...`, `x < ...`, an interval), return whether the answer does too."""
    if isinstance(gold, sympy.Eq) and (name := _subject(gold)) is not None:
        return not isinstance(answer, sympy.Eq) or _subject(answer) == name
    if isinstance(gold, sympy.Set) or (isinstance(gold, Relational) and _subject(gold) is not None):
        relations = answer.atoms(Relational) if isinstance(answer, sympy.Basic) else ()
        return all(_subject(relation) is not None for relation in relations)
    return True


def _subject(relation: Relational) -> sympy.Basic | None:
    """Return the name that is alone on one side, and nowhere on the other."""
    for side, other in ((relation.lhs, relation.rhs), (relation.rhs, relation.lhs)):
        if isinstance(side, (sympy.Symbol, AppliedUndef)) and not other.has(side):
            return side
    return None


def _expressions(tree: sympy.Basic) -> Iterator[sympy.Basic]:
    """Yield the expressions that tuples, sets, relations and matrices are made of."""
    if isinstance(tree, sympy.MatrixBase):
        for item in tree.flat():
            yield from _expressions(item)
    elif isinstance(tree, sympy.Piecewise):
        for piece in tree.args:
            yield piece.expr
    elif isinstance(tree, (sympy.Expr, MatrixExpr)):
        yield tree
    else:
        for part in getattr(tree, "args", ()):
            yield from _expressions(part)


def _nodes(tree: sympy.Basic) -> Iterator[sympy.Basic]:
    """Yield the nodes of a tree; a product within a product is a part of it, and no node."""
    yield tree
    for part in _factors(tree) if isinstance(tree, sympy.Mul) else tree.args:
        yield from _nodes(part)


def _factors(product: sympy.Mul) -> Iterator[sympy.Expr]:
    for factor in product.args:
        below = isinstance(factor, sympy.Pow) and factor.exp == -1
        inner = factor.base if below else factor
        if isinstance(inner, sympy.Mul):
            yield from _factors(inner)
        else:
            yield factor


def _pending(node: sympy.Basic) -> int:
    """Return the pending work of a node, without the nodes below it."""
    if isinstance(node, _UNDONE):
        return 0 if isinstance(node, sympy.MatrixSymbol) else 1
    if isinstance(node, sympy.Add):
        return _like_terms(node)
    if isinstance(node, sympy.Mul):
        return _left_of_product(node)
    if isinstance(node, sympy.Pow):
        return _left_of_power(node.base, node.exp)
    if isinstance(node, sympy.Function) and not isinstance(node, AppliedUndef):
        known = not node.func(*map(evaluated, node.args)).has(node.func)
        return int(known or (isinstance(node, sympy.exp) and node.has(sympy.I)))
    return 0


def _like_terms(node: sympy.Add) -> int:
    terms = [evaluated(term) for term in _terms(node)]
    return len(terms) - len(set(terms))


def _left_of_product(node: sympy.Mul) -> int:
    above, below = _halves(node)
    left = 0
    numbers = [[abs(factor) for factor in half if factor.is_Rational and abs(factor) != 1] for half in (above, below)]
    left += sum(max(0, len(half) - 1) for half in numbers)
    if all(numbers) and gcd(numbers[0][0].p, numbers[1][0].p) > 1:
        left += 1
    roots = [[factor for factor in half if is_root(factor)] for half in (above, below)]
    left += sum(max(0, len(half) - 1) for half in roots)
    for root in roots[1]:  # 21/\sqrt{21}, \sqrt{6}/\sqrt{2}
        shared = [*numbers[0], *(other.base for other in roots[0])]
        numerators = [number.p for number in shared if number.is_Rational]
        left += root.base.is_Integer and any(gcd(int(root.base), numerator) > 1 for numerator in numerators)
    repeats = (factor for factor in above if not (factor.is_Rational or is_root(factor) or factor.has(sympy.factorial)))
    bases = Counter(evaluated(factor.base if isinstance(factor, sympy.Pow) else factor) for factor in repeats)
    left += sum(bases.values()) - len(bases)
    return left + _common_factor(above, below)


def _common_factor(above: list[sympy.Expr], below: list[sympy.Expr]) -> int:
    top, bottom = (sympy.Mul(*(evaluated(factor) for factor in half)) for half in (above, below))
    leaves = sum(not node.args for half in (top, bottom) for node in sympy.preorder_traversal(half))
    if not (top.free_symbols & bottom.free_symbols) or leaves > _LARGEST_GCD:
        return 0
    try:
        return int(bool(sympy.gcd(top, bottom).free_symbols))
    except sympy.PolynomialError:
        return 0


def _left_of_power(base: sympy.Expr, exponent: sympy.Expr) -> int:
    if not exponent.is_Rational or exponent == -1:
        polar = exponent.has(sympy.I)
        return int(polar or (isinstance(base, sympy.Pow) and exponent != -1))
    if exponent.is_Integer:
        return int(base.is_Rational or isinstance(base, (sympy.Pow, sympy.Mul, sympy.exp)) or base == sympy.I)
    factors = [factor for factor in base.args if factor != 1] if isinstance(base, sympy.Mul) else [base]
    sums = (node for node in sympy.preorder_traversal(base) if isinstance(node, sympy.Add))
    nested = sum(any(map(_has_root, node.args)) for node in sums)
    return sum(_leaves_root(factor, exponent.q) for factor in factors) + nested


def _leaves_root(factor: sympy.Expr, degree: int) -> bool:
    """Return whether a power of that degree can be taken out of a factor below a root."""
    if factor.is_Rational:
        parts = [*sympy.factorint(abs(factor.p)).values(), *sympy.factorint(factor.q).values()]
        return factor == 1 or any(power >= degree for power in parts)
    inner = evaluated(factor)
    return bool(inner.is_Pow and inner.exp.is_Integer and abs(inner.exp) >= degree)


def _count_form(node: sympy.Basic, work: Work, within_sum: bool) -> None:
    if isinstance(node, sympy.Add) or (isinstance(node, sympy.Mul) and _lone_sum(node, by_numbers=True) is not None):
        for term in _terms(node):
            _count_form(term, work, within_sum=True)
        return
    parts: list[sympy.Basic] = []
    if not isinstance(node, (sympy.Mul, sympy.Pow)):
        parts += node.args
    else:
        for at, half in enumerate(_halves(node)):
            sums = sum(map(_multiplicity, half))
            others = any(not _multiplicity(factor) and (not factor.is_number or _has_root(factor)) for factor in half)
            products = max(0, sums + others - 1) if sums else 0
            if within_sum:
                work.inner += products
            else:
                work.outer += products
                work.monomials += products == sums == 1
            if at == 1:  # a sum with roots or i below the line
                below = [factor for factor in half if isinstance(factor, sympy.Add)]
                work.pending += sum(any(map(_has_root, factor.args)) for factor in below)
            parts += [part for factor in half for part in ((factor,) if isinstance(factor, sympy.Add) else factor.args)]
    for part in parts:
        _count_form(part, work, within_sum)


def _terms(node: sympy.Expr) -> Iterator[sympy.Expr]:
    """Yield the terms of a sum without their numbers; a sum that is multiplied by something is opened."""
    if isinstance(node, sympy.Add):
        for part in node.args:
            yield from _terms(part)
        return
    lone = _lone_sum(node, by_numbers=False)
    above, below = _halves(node)
    others = [factor for factor in above if factor is not lone and not factor.is_Rational]
    others += [sympy.Pow(factor, -1, evaluate=False) for factor in below if not factor.is_Rational]
    for rest in [[]] if lone is None else ([term] for term in _terms(lone)):
        product = [*rest, *others]
        yield product[0] if len(product) == 1 else sympy.Mul(*product, evaluate=False)


def _lone_sum(node: sympy.Expr, by_numbers: bool) -> sympy.Add | None:
    """Return the only sum above the line of a product; `by_numbers`: if the other factors are all numbers."""
    if not isinstance(node, sympy.Mul):
        return None
    above, _ = _halves(node)
    sums = [factor for factor in above if _multiplicity(factor)]
    others = [factor for factor in above if not factor.is_Rational and not _multiplicity(factor)]
    lone = len(sums) == 1 and isinstance(sums[0], sympy.Add) and not (by_numbers and others)
    return sums[0] if lone else None


def _halves(node: sympy.Expr) -> tuple[list[sympy.Expr], list[sympy.Expr]]:
    """Return the factors above and below the line."""
    above, below = [], []
    for factor in node.args if isinstance(node, sympy.Mul) else (node,):
        if isinstance(factor, sympy.Mul):
            up, down = _halves(factor)
        elif isinstance(factor, sympy.Pow) and factor.exp.is_Rational and factor.exp < 0:
            under = factor.base if factor.exp == -1 else sympy.Pow(factor.base, -factor.exp, evaluate=False)
            down, up = _halves(under)
        elif factor.is_Rational and factor.q != 1:
            up, down = [sympy.Integer(factor.p)], [sympy.Integer(factor.q)]
        else:
            up, down = [factor], []
        above += up
        below += down
    return above, below


def _denominators(tree: sympy.Basic) -> Iterator[sympy.Expr]:
    """Yield the factors below the line, once for each product, without factorials: binomials are written with them."""
    above, below = _halves(tree) if isinstance(tree, (sympy.Mul, sympy.Pow)) else (tree.args, [])
    below = [factor for factor in below if not (factor.is_number or factor.has(sympy.factorial))]
    if below:
        yield evaluated(sympy.Mul(*below, evaluate=False))
    for part in (*above, *below):
        for inner in (part,) if part is not tree else part.args:
            yield from _denominators(inner)


def _multiplicity(factor: sympy.Expr) -> int:
    """Return how often a factor that is a sum, or a power of a sum, is in a product; 0 for any other factor."""
    if isinstance(factor, sympy.Add):
        return 1
    power = isinstance(factor, sympy.Pow) and isinstance(factor.base, sympy.Add) and factor.exp.is_Integer
    return abs(int(factor.exp)) if power else 0


def _has_root(tree: sympy.Basic) -> bool:
    return any(is_root(node) or node == sympy.I for node in sympy.preorder_traversal(tree))
