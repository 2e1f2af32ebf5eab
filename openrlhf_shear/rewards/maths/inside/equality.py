"""Equality of two tidy answers, by math-verify's LaTeX grammar and sympy. Runs inside a jail only."""

import re
from functools import lru_cache

import sympy
from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from math_verify.grader import is_relation
from sympy.core.relational import Relational
from worked import worked_out

# maths/text.py takes off units first: math-verify would read 4g as 4.
_LATEX = LatexExtractionConfig(
    boxed_match_priority=0,
    try_extract_without_anchor=False,
    normalization_config=NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="last", equations=False
    ),
)

_CAPITAL = re.compile(
    r"\\mathbb\s*\{?[A-Z]|\\[A-Za-z]+|(?P<capital>[A-DF-HJ-Z])(?:_(?:\{(?P<braced>[^{}]*)\}|(?P<single>[0-9A-Za-z])))?"
)


def compare(gold: str, answer: str, tolerance: float | None) -> tuple[bool, str | None]:
    """Return whether two tidy texts are equal with the answer worked out as far as the gold; if not, also why."""
    golds, answers = _parse_gold(gold), _parse(answer)
    if not golds or not answers:
        return False, "unparsable" if golds else "gold_unparsable"
    gold, answer = golds[0], answers[0]
    if isinstance(answer, sympy.Basic) and answer.has(sympy.nan, sympy.zoo):
        return False, "wrong"
    numbers = all(isinstance(x, sympy.Expr) and x.is_number for x in (gold, answer))
    if tolerance and numbers and abs((gold - answer).evalf()) <= tolerance:
        return True, None
    if numbers and _far_apart(gold, answer):
        return False, "wrong"
    # 15 decimals: a float equals an exact number only if it is that number (1.414214 is not the root of 2).
    correct = verify(gold, answer, float_rounding=15, allow_set_relation_comp=True, timeout_seconds=None)
    if not correct or _empty_relation(gold, answer):  # last: solving takes longest
        return False, "wrong"
    return (True, None) if worked_out(gold, answer) else (False, "unevaluated")


def _far_apart(gold: sympy.Expr, answer: sympy.Expr) -> bool:
    """Return whether two numbers differ in their first digits: certain, and much faster than a proof."""
    wanted, given = gold.evalf(), answer.evalf()
    if not (wanted.is_number and given.is_number and wanted.is_finite and given.is_finite):
        return False
    return bool(abs(wanted - given) > 1e-9 * (1 + abs(wanted)))


def _parse(text: str) -> list:
    # Only LaTeX is read: math-verify's plain expressions go through sympy's parse_expr, which is eval.
    trees = parse(
        rf"\boxed{{{_CAPITAL.sub(_marked, text)}}}",
        [_LATEX],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    return [_exact(tree) for tree in trees[:1]]


_parse_gold = lru_cache(256)(_parse)  # the rollouts of a group have the same gold


def _exact(tree):
    """Return a tree with decimals as the fractions they are, and i as the imaginary unit."""
    if isinstance(tree, sympy.MatrixBase):
        return tree.applyfunc(_exact)
    if isinstance(tree, sympy.Float):
        return sympy.Rational(repr(float(tree)))
    if isinstance(tree, sympy.Symbol) and tree.name == "i":
        return sympy.I
    if not isinstance(tree, sympy.Basic) or not tree.args:
        return tree
    parts = [_exact(part) for part in tree.args]
    if all(new is old for new, old in zip(parts, tree.args, strict=True)):
        return tree
    return tree.func(*parts, evaluate=False) if isinstance(tree, (sympy.Expr, Relational)) else tree.func(*parts)


def _marked(match: re.Match[str]) -> str:
    """Rename R to R_{u}, R_1 to R_{u1}: math-verify takes capitals for small letters, and R^2-r^2 for 0."""
    if match["capital"] is None:
        return match[0]
    return f"{match['capital']}_{{u{match['braced'] or match['single'] or ''}}}"


def _empty_relation(gold, answer) -> bool:
    """Return whether both are relations that only seem equal.

    Two equations without solutions are equal to math-verify: `1=2` would answer every equation it cannot solve.
    """
    if not (is_relation(gold) and is_relation(answer)):
        return False
    if gold.free_symbols != answer.free_symbols:
        return True
    return isinstance(answer, sympy.Eq) and answer != gold and not sympy.solve(answer, answer.free_symbols)
