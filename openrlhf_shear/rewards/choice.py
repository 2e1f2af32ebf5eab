r"""Multiple choice by a letter, A to J: the last boxed one, the one after "answer is", or a last line of one.

The letter may stand in brackets, and its text may follow: `\boxed{C}`, `(C)`, `C. Paris`. Nothing is evaluated.
"""

import time

import regex as re

from openrlhf_shear.rewards.grader import Grader, Limits, Sample
from openrlhf_shear.rewards.maths.answers import final_answer
from openrlhf_shear.rewards.verdict import Reason, Verdict

_FORMATS = ("boxed", "tags")
_TAIL = 400  # characters in which a last line must begin
_STYLE = re.compile(r"\\(?:text|textbf|mathrm|mathbf|boxed)\s*+\{([^{}]*+)\}")
_AROUND = "*_$`\"' \t"
_LONE = re.compile(r"(?i)(?:option|choice|answer)?[\s:]*+[(\[]?([A-J])[)\]]?[.:]?")
_WITH_TEXT = re.compile(r"(?:[Oo]ption |[Cc]hoice )?(?:\(([A-J])\)|([A-J])(?:[).:,]|\s(?=because\b|since\b)))\s*+(.+)")
_ANOTHER = re.compile(r"(?:and|or|nor|[,/&])(?![A-Za-z])|[A-J]$|.*(?:\([A-J]\)|(?<![A-Za-z])[A-J][).:,])")


def letter_of(text: str) -> str | None:
    r"""Return the letter that a text chooses; None if it is no letter, or several.

    >>> [letter_of(text) for text in ("(c)", r"\text{C}", "C. Paris", "A dog", "A, B", "(A) or (B)")]
    ['C', 'C', 'C', None, None, None]
    """
    text = _STYLE.sub(r"\1", text).strip(_AROUND)
    if lone := _LONE.fullmatch(text):
        return lone[1].upper()
    match = _WITH_TEXT.fullmatch(text)
    return None if match is None or _ANOTHER.match(match[3]) else match[1] or match[2]


def chosen(response: str) -> str | None:
    """Return the letter that a response ends on, or None."""
    marked, _ = final_answer(response, _FORMATS)
    *_, last = ["", *response[-_TAIL:].rstrip().splitlines()]
    return next(filter(None, map(letter_of, filter(None, (marked, last)))), None)


def _grade(sample: Sample, limits: Limits, workers: None) -> Verdict:
    """Grade a response. Raises ValueError: the label is no letter."""
    started = time.perf_counter()
    gold = letter_of(str(sample.label))
    if gold is None:
        raise ValueError(f"the label {_problem(sample.label)}")
    letter = chosen(sample.response)
    reason = Reason.NO_ANSWER if letter is None else None if letter == gold else Reason.WRONG
    return Verdict(reason is None, reason, answer=letter, method="letter", seconds=time.perf_counter() - started)


def _problem(label: object) -> str | None:
    return None if letter_of(str(label)) else f"is no letter from A to J but {label!r:.80}"


CHOICE = Grader(
    name="choice",
    title="Multiple choice",
    about="compares the letter that the response chooses, A to J, with the label's",
    grade=_grade,
    label_problem=_problem,
    example=("The answer is (C).", "C"),
    system=r"Please reason step by step, and put the letter of your choice within \boxed{}.",
)
