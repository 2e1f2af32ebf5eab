r"""The maths grader as the rest of the package asks it, and the lenient score of its evaluations."""

from collections.abc import Sequence
from fractions import Fraction

from openrlhf_shear.rewards.grader import Grader, Limits, Sample
from openrlhf_shear.rewards.labels import golds_of
from openrlhf_shear.rewards.maths.grade import checked_golds, grade_math
from openrlhf_shear.rewards.maths.numbers import Number
from openrlhf_shear.rewards.maths.text import tidy
from openrlhf_shear.rewards.maths.values import read_value
from openrlhf_shear.rewards.maths.workers import MathWorkers
from openrlhf_shear.rewards.verdict import Verdict

STEP_BY_STEP = r"Please reason step by step, and put your final answer within \boxed{}."
RELATIVE = Fraction(1, 10_000)
SCALES = (Fraction(1), Fraction(1, 100), Fraction(100))


def _grade(sample: Sample, limits: Limits, workers: MathWorkers) -> Verdict:
    return grade_math(
        sample.response,
        golds_of(sample.label),
        question=sample.prompt or None,
        formats=limits.formats,
        timeout=limits.seconds,
        tolerance=sample.tolerance,
        workers=workers,
    )


def _label_problem(label: object) -> str | None:
    try:
        checked_golds(golds_of(label))
    except ValueError as error:
        return f"is refused ({error})"
    return None


def lenient(answer: str | None, gold: str | Sequence[str], strict: bool) -> bool:
    """Return whether an extracted answer is correct by the lenient score; true wherever `strict` is true.

    `strict` is `grade_math`'s verdict. Numbers are equal within a relative 1e-4, and x also answers x/100 and 100x, for
    percentages, after Qwen2.5-Math's `math_equal` (arXiv:2409.12122); unlike there, for fractions too. Only numbers
    written as such are compared, and exactly: integers, decimals, thousands' commas, fractions, percentages and powers
    of ten, with or without a unit. No text of a model is evaluated, where the original calls sympy. This score is never
    a reward.

    >>> lenient("0.3333", "1/3", False), lenient("5", "500", False), lenient("5.01", "5", False)
    (True, True, False)
    """
    if strict or answer is None:
        return strict
    number = read_value(tidy(answer))
    golds = [gold] if isinstance(gold, str) else gold
    return isinstance(number, Number) and any(_near(read_value(tidy(text)), number) for text in golds)


def _near(gold: object, answer: Number) -> bool:
    if not isinstance(gold, Number) or (gold.name and answer.name and gold.name != answer.name):
        return False
    if gold.unit != answer.unit and ((gold.unit and answer.unit) or gold.rescaled or answer.rescaled):
        return False
    scaled = (gold.value * scale for scale in SCALES)
    return any(abs(wanted - answer.value) <= RELATIVE * max(abs(wanted), abs(answer.value)) for wanted in scaled)


MATH = Grader(
    name="math",
    title="Mathematical reasoning",
    about="compares the answer in the last \\boxed{} with the label",
    grade=_grade,
    label_problem=_label_problem,
    example=("\\boxed{1 + x}", "x + 1"),
    start_workers=MathWorkers,
    seconds=5.0,
    timed="a maths grade",
    lenient=lenient,
    system=STEP_BY_STEP,
)
