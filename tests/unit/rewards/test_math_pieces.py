"""Formulas with pieces, whose mutants agree with them on long intervals: mutants are not paid, rewrites are."""

import random
import re

import pytest

from openrlhf_shear.rewards.maths.text import tidy
from openrlhf_shear.rewards.maths.workers import MathWorkers

pytestmark = pytest.mark.usefixtures("needs_jail")
# Formula ~ an equal one ~ others. P is linear in x, M is -P, Q is linear in y; 2 <= q < r.
TEMPLATES = r"""
|P| ~ |M| ~ (P) ~ (M)
\frac{|P|}{q} ~ \frac{|M|}{q} ~ \frac{P}{q} ~ \frac{M}{q}
|x-y| ~ |y-x| ~ (x-y) ~ (y-x) ~ |x+y|
\ln|P| ~ \ln|M| ~ \ln(P) ~ \ln(M)
\frac{|P|}{P} ~ \frac{P}{|P|} ~ 1 ~ (-1)
||P|-q| ~ |q-|P|| ~ (|P|-q) ~ (q-|P|)
\sqrt{(P)^2} ~ |P| ~ (P) ~ (M)
\max(P,Q) ~ \max(Q,P) ~ (P) ~ (Q)
\min(P,Q) ~ \min(Q,P) ~ (P) ~ (Q)
\max(q,x) ~ \max(x,q) ~ q ~ x
\max(x,y,0) ~ \max(0,x,y) ~ \max(x,y)
\lfloor\frac{P}{q}\rfloor ~ (-\lceil\frac{M}{q}\rceil) ~ \lfloor\frac{P}{r}\rfloor ~ \frac{P}{q}
\lceil\frac{P}{q}\rceil ~ (-\lfloor\frac{M}{q}\rfloor) ~ \lceil\frac{P}{r}\rceil ~ \frac{P}{q}
\lfloor\frac{n}{q}\rfloor ~ (-\lceil\frac{-n}{q}\rceil) ~ \lfloor\frac{n}{r}\rfloor ~ 0
\lfloor\sqrt{n+q}\rfloor ~ \lfloor\sqrt{q+n}\rfloor ~ (-\lfloor\sqrt{n+q}\rfloor) ~ \lfloor\sqrt{n+r}\rfloor
(n \bmod q) ~ ((n+q) \bmod q) ~ (n \bmod r) ~ n
\gcd(n,12q) ~ \gcd(12q,n) ~ \gcd(n,6q) ~ 1
\gcd(n,m) ~ \gcd(m,n+m) ~ \gcd(n,2m) ~ \gcd(n,m+1)
\binom{n}{2} ~ \binom{n}{n-2} ~ \frac{n(n+1)}{2} ~ \binom{n}{3}
"""


def linear(draw: random.Random, name: str) -> tuple[str, str]:
    """Return a linear expression, and its negative."""
    slope, constant = draw.choice((1, 1, 2, 3, -1, -2)), draw.randint(2, 40) * draw.choice((1, -1))
    return f"{slope}{name}{constant:+d}", f"{-slope}{name}{-constant:+d}"


def test_no_mutant_of_a_formula_with_pieces_is_paid():
    draw, mistaken = random.Random(0), []
    with MathWorkers(1) as workers:
        for template in TEMPLATES.strip().splitlines() * 3:
            (plus, minus), (other, _), smaller = linear(draw, "x"), linear(draw, "y"), draw.randint(2, 8)
            values = {"P": plus, "M": minus, "Q": other, "q": str(smaller), "r": str(smaller + draw.randint(1, 3))}
            before = draw.choice(("", "3+", "\\pi+", "t^2+"))
            gold, rewrite, *mutants = (tidy(before + _filled(text, values)) for text in template.split(" ~ "))
            for answer in (rewrite, *mutants):
                correct, _ = workers.compare(gold, answer, 30.0)
                if correct != (answer == rewrite):
                    mistaken.append(f"{gold} ~ {answer}: {correct}")
    assert mistaken == []


def _filled(text: str, values: dict[str, str]) -> str:
    text = re.sub(r"(12|6)q", lambda match: str(int(match[1]) * int(values["q"])), text)
    return re.sub(r"(?<![A-Za-z\\])[PMQqr](?![A-Za-z])", lambda match: values[match[0]], text)
