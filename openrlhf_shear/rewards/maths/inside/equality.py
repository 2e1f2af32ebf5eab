"""Equality of two tidy answers, by math-verify's LaTeX grammar and sympy. Runs inside a jail only."""

import re
from functools import lru_cache

import sympy
from exact import equal, use_in_math_verify
from functions import with_letters
from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from math_verify.grader import is_relation
from sympy.core.relational import Relational
from worked import worked_out

use_in_math_verify()

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

_BINOMIAL = re.compile(r"([0-9])\s*\\binom(?![A-Za-z])")  # else 2\binom{8}{3} is 2 + 56
_INDEX = re.compile(r"_\{\\([A-Za-z]+)\s*\}")  # the grammar knows no sign as an index
_MIXED = re.compile(r"(?<![0-9.}^_{])([0-9]+)\s*\\frac\s*\{([0-9]+)\}\s*\{([0-9]+)\}")


def compare(
    gold: str, answer: str, tolerance: float | None, formulas: list[str] | None = None
) -> tuple[bool, str | None]:
    """Return whether two tidy texts are equal with the answer worked out as far as the gold; if not, also why.

    Args:
        formulas: of the question, tidy (see `worked.worked_out`); None: the question is not known.
    """
    golds, answers = _parse_gold(gold), _parse(answer)
    if not golds or not answers:
        return False, "unparsable" if golds else "gold_unparsable"
    gold, answer = golds[0], answers[0]
    if isinstance(answer, sympy.Basic) and answer.has(sympy.nan, sympy.zoo):
        return False, "wrong"
    numbers = all(isinstance(x, sympy.Expr) and x.is_number for x in (gold, answer))
    if tolerance and numbers and abs((gold - answer).evalf()) <= tolerance:
        return True, None
    if numbers and equal(gold, answer) is False:
        return False, "wrong"
    if not verify(gold, answer, allow_set_relation_comp=True, timeout_seconds=None) or _empty_relation(gold, answer):
        return False, "wrong"
    in_question = None if formulas is None else lambda: any(_is(gold, formula) for formula in formulas)
    return (True, None) if worked_out(gold, answer, in_question) else (False, "unevaluated")


def _is(gold, formula: str) -> bool:
    """Return whether a formula of the question equals the gold, as an expression."""
    try:
        trees = _parse_gold(formula)
    except Exception:  # it was written for people
        return False
    if not trees or getattr(trees[0], "free_symbols", None) != getattr(gold, "free_symbols", None):
        return False
    return verify(gold, trees[0], allow_set_relation_comp=True, timeout_seconds=None)


def _parse(text: str) -> list:
    try:
        return [_tree(*with_letters(text, _tree))]
    except ValueError:
        return []


def _tree(text: str, letters: dict[str, sympy.Basic]) -> sympy.Basic:
    """Return the tree of a text, in which letters stand for the trees of functions. Raises ValueError: it has none."""
    # Only LaTeX is read: math-verify's plain expressions go through sympy's parse_expr, which is eval.
    text = _INDEX.sub(r"_{\1}", text)
    text = _in_brackets(_MIXED.sub(_improper, _BINOMIAL.sub(r"\1\\cdot \\binom", text)))
    trees = parse(
        rf"\boxed{{{_CAPITAL.sub(_marked, text)}}}",
        [_LATEX],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    if not trees:
        raise ValueError("it cannot be parsed")
    return _exact(trees[0], letters)


def _in_brackets(text: str) -> str:
    """Return a text with brackets around each absolute value: else |b|+2|a| is one, of b|+2|a."""
    pieces, open_at = [], []
    for piece in re.split(r"(\|)", text):
        before = "".join(pieces).rstrip()
        if piece != "|":
            pieces.append(piece)
        elif open_at and re.search(r"[A-Za-z0-9)}\]!)]$", before):
            open_at.pop()
            pieces.append("|)")
        else:
            open_at.append(len(pieces))
            pieces.append("(|")
    return text if open_at or "\\{" in text or r"\mid" in text else "".join(pieces)


_parse_gold = lru_cache(256)(_parse)  # the rollouts of a group have the same gold


def _exact(tree, letters: dict[str, sympy.Basic]):
    """Return a tree with decimals as the fractions they are, i as the imaginary unit, and functions for letters."""
    if isinstance(tree, sympy.MatrixBase):
        return tree.applyfunc(lambda part: _exact(part, letters))
    if isinstance(tree, sympy.Float):
        return sympy.Rational(repr(float(tree)))
    if isinstance(tree, sympy.Symbol) and tree.name == "i":
        return sympy.I
    if not isinstance(tree, sympy.Basic) or not tree.args:
        return letters.get(getattr(tree, "name", None), tree)
    parts = [_exact(part, letters) for part in tree.args]
    if all(new is old for new, old in zip(parts, tree.args, strict=True)):
        return tree
    return tree.func(*parts, evaluate=False) if isinstance(tree, (sympy.Expr, Relational)) else tree.func(*parts)


def _marked(match: re.Match[str]) -> str:
    """Rename R to R_{u}, R_1 to R_{u1}: math-verify takes capitals for small letters, and R^2-r^2 for 0."""
    if match["capital"] is None:
        return match[0]
    return f"{match['capital']}_{{u{match['braced'] or match['single'] or ''}}}"


def _improper(match: re.Match[str]) -> str:
    r"""Return a mixed number as a fraction, also before a factor: 5\frac{1}{4}\pi is not 5\cdot\frac{1}{4}\pi."""
    whole, above, below = map(int, match.groups())
    return rf"\frac{{{whole * below + above}}}{{{below}}}" if above < below else match[0]


def _empty_relation(gold, answer) -> bool:
    """Return whether both are relations that only seem equal.

    Two equations without solutions are equal to math-verify: `1=2` would answer every equation it cannot solve.
    """
    if not (is_relation(gold) and is_relation(answer)):
        return False
    if gold.free_symbols != answer.free_symbols:
        return True
    return isinstance(answer, sympy.Eq) and answer != gold and not sympy.solve(answer, answer.free_symbols)
