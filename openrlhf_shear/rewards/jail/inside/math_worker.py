"""Compares answers with math-verify inside a jail: imported once, each comparison in a child with tight limits."""

import gc
import json
import os
import re
import resource
import sys
from collections.abc import Callable

import sympy
from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from math_verify.grader import is_relation

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # python -I leaves it out

import runner

_FILES = 16
# The parser learns its grammar and sympy fills its caches while they work: each pair saves every child some 10 ms.
_WARM_UP = r"""
\frac{1}{2}\sqrt{3} ~ \frac{\sqrt{3}}{2}    \frac{\sqrt{3}}{3} ~ 1/\sqrt{3}    3\sqrt{13} ~ \sqrt{118}
12\pi ~ \frac{1}{2}\pi+2    (1,\pi] ~ 1<x\le \pi    x>2 ~ (2,\infty)
(-\infty,2)\cup(3,\infty) ~ (3,\infty)\cup(-\infty,2)    \{1,\sqrt{2}\} ~ \sqrt{2},1
1\pm\sqrt{5} ~ 1-\sqrt{5},1+\sqrt{5}    (3,\frac{\pi}{2}) ~ (3,\pi/2)    3+2i ~ 2i-3    x^3-2x+1 ~ 1+x^3-2x
(x+1)(x-2) ~ x^2-x-2    \frac{n(n+1)}{2} ~ n(n-1)/2    \frac{2a+b}{c} ~ (b+3a)/c    y=2x+1 ~ 2x-y+1=0
\begin{pmatrix} 1 & \frac{1}{2} \\ 3 & 4 \end{pmatrix} ~ \begin{bmatrix} 1 & 1/2 \\ 3 & 5 \end{bmatrix}
2^{n}-1 ~ 2\cdot 2^{n-1}    \binom{n}{2} ~ n!/2    \log_{2} 3+\sin x ~ \cos x+\ln 2
\sqrt[3]{4} ~ \lfloor x \rfloor
"""

# Units are taken off before (maths/text.py): math-verify would read 4g as 4.
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


def main() -> Callable[[], None] | None:
    for pair in re.split(r"\n|    ", _WARM_UP.strip()):
        compare(*pair.split(" ~ "), None)
    gc.freeze()
    gc.disable()  # a collection would copy every page of a child
    link_in, link_out, job = runner.opened()
    return runner.each_in_a_child(link_in, link_out, lambda task: grade(job["no_fork"], task))


def grade(no_fork: str, task: dict) -> None:
    """One comparison, in a child that ends with it."""
    _confine(no_fork, task["timeout"])
    try:
        said = compare(task["gold"], task["answer"], task["tolerance"])
    except MemoryError:
        said = False, "memory"
    except Exception:  # sympy raises anything; the answer is then not shown to be equal
        said = False, "unparsable"
    os.write(runner.ANSWER, json.dumps(said).encode())
    os._exit(0)  # an interpreter with sympy takes longer to end than a grade


def _confine(no_fork: str, timeout: float) -> None:
    """Leave the child its result pipe and nothing else. The memory limit is the jail's."""
    runner.silence()
    limits = {resource.RLIMIT_CPU: int(timeout) + 2, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NOFILE: _FILES}
    runner.confine(no_fork, limits)


def compare(gold: str, answer: str, tolerance: float | None) -> tuple[bool, str | None]:
    """Whether math-verify finds two tidy texts equal, and why not."""
    golds, answers = _parse(gold), _parse(answer)
    if not golds or not answers:
        return False, "unparsable" if golds else "gold_unparsable"
    gold, answer = golds[0], answers[0]
    if _empty_relation(gold, answer) or (isinstance(answer, sympy.Basic) and answer.has(sympy.nan, sympy.zoo)):
        return False, "wrong"
    numbers = all(isinstance(x, sympy.Expr) and x.is_number for x in (gold, answer))
    if tolerance and numbers and abs((gold - answer).evalf()) <= tolerance:
        return True, None
    # 15 decimals: a float equals an exact number only where it is that number (1.414214 is not the root of 2).
    correct = verify(golds, answers, float_rounding=15, allow_set_relation_comp=True, timeout_seconds=None)
    return bool(correct), None if correct else "wrong"


def _parse(text: str) -> list:
    # Only LaTeX is read: math-verify's plain expressions go through sympy's parse_expr, which is eval.
    return parse(
        rf"\boxed{{{_CAPITAL.sub(_marked, text)}}}",
        [_LATEX],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )


def _marked(match: re.Match[str]) -> str:
    """R -> R_{u}, R_1 -> R_{u1}: math-verify takes capitals for small letters, and R^2-r^2 for 0."""
    if match["capital"] is None:
        return match[0]
    return f"{match['capital']}_{{u{match['braced'] or match['single'] or ''}}}"


def _empty_relation(gold, answer) -> bool:
    """Two equations without solutions are equal to math-verify: `1=2` would answer every one it cannot solve."""
    if not (is_relation(gold) and is_relation(answer)):
        return False
    if gold.free_symbols != answer.free_symbols:
        return True
    return isinstance(answer, sympy.Eq) and not sympy.solve(answer, answer.free_symbols)


if __name__ == "__main__" and (comparing := main()):
    comparing()
