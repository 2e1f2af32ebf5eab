"""Formulas with pieces, whose mutants agree with them on long intervals: mutants are not paid, rewrites are."""

import random
import re

import pytest
from maths_answers import TABLES, cases

from openrlhf_shear.rewards.maths.text import tidy
from openrlhf_shear.rewards.maths.workers import MathWorkers

pytestmark = pytest.mark.usefixtures("needs_jail")


def linear(draw: random.Random, name: str) -> tuple[str, str]:
    """Return a linear expression, and its negative."""
    slope, constant = draw.choice((1, 1, 2, 3, -1, -2)), draw.randint(2, 40) * draw.choice((1, -1))
    return f"{slope}{name}{constant:+d}", f"{-slope}{name}{-constant:+d}"


def test_no_mutant_of_a_formula_with_pieces_is_paid():
    draw, mistaken = random.Random(0), []
    with MathWorkers(1) as workers:
        for template in cases(TABLES["pieces"]) * 3:
            (plus, minus), (other, _), smaller = linear(draw, "x"), linear(draw, "y"), draw.randint(2, 8)
            values = {"P": plus, "M": minus, "Q": other, "q": str(smaller), "r": str(smaller + draw.randint(1, 3))}
            before = draw.choice(("", "3+", "\\pi+", "t^2+"))
            gold, rewrite, *mutants = (tidy(before + _filled(text, values)) for text in template)
            for answer in (rewrite, *mutants):
                correct, _ = workers.compare(gold, answer, 30.0)
                if correct != (answer == rewrite):
                    mistaken.append(f"{gold} ~ {answer}: {correct}")
    assert mistaken == []


def _filled(text: str, values: dict[str, str]) -> str:
    text = re.sub(r"(12|6)q", lambda match: str(int(match[1]) * int(values["q"])), text)
    return re.sub(r"(?<![A-Za-z\\])[PMQqr](?![A-Za-z])", lambda match: values[match[0]], text)
