r"""The maths reward: whether a response's final answer is the gold answer (docs/rewards.md says what counts as equal).

`answers` finds the last `\boxed{}`. The cheap match (`values`) settles numbers, lists, sets, tuples, intervals and
equal texts. An answer that it leaves open must pass a whitelist (`guard`). Then math-verify compares it, in a jailed
child that is killed at its deadline (`workers`). Only math-verify's LaTeX grammar is used: plain expressions go through
`parse_expr`, which is `eval`.
"""

import functools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import regex as re

from openrlhf_shear.rewards.maths.answers import check_formats, final_answer
from openrlhf_shear.rewards.maths.conditions import agree, concluded, renamed, without_condition
from openrlhf_shear.rewards.maths.guard import commands, has_variables, readable, refusal
from openrlhf_shear.rewards.maths.numbers import Number, read_number, split_unit
from openrlhf_shear.rewards.maths.quantities import formulas_of, value_of, value_of_named
from openrlhf_shear.rewards.maths.ranges import as_intervals, as_list
from openrlhf_shear.rewards.maths.text import ABOUT, COMMAND, MAX_ANSWER, as_latex, squeeze, tidy
from openrlhf_shear.rewards.maths.values import Text, Value, ValueGroup, read_value, same, without_name
from openrlhf_shear.rewards.maths.workers import MathWorkers, WorkerDiedError, default_workers
from openrlhf_shear.rewards.verdict import Failure, Reason, Verdict

_SHOWN = 500
_LETTER = re.compile("[A-J]")
_CHOSEN = "[Oo]ption|[Cc]hoice|[Tt]he (?:correct )?answer is"
_CHOICE = re.compile(
    rf'(?:(?:"?+\(([A-J])\)"?+|"?+(?:{_CHOSEN})"?+\s*+"?+\(?([A-J])\)?"?+[.:]?)'
    r"(?:\s++-++(?=\s))?+"
    r'|"?+([A-J])(?:[.)]|:(?=[\s"])|\s*+"-|\s++-{1,2}\s(?=[A-Za-z]{2})|(?="?\s++"(?!and\b|or\b)[A-Za-z ]{3,}+"$))"?+)'
    r"(?:\s*+$|\s*+((?!.*(?<![A-Za-z])[A-J][.):])[^\s*+/^=,;-].*))"
)
_FUNCTION = re.compile(r"([a-zA-Z](?:\^\{-1\})?)\(([a-z])\)\s*+=")
_THING = r"(?=[a-zA-Z]*[aeiouAEIOU])[A-Za-z]{3,}"  # with a vowel: "3 ab", "3 xyz" and "3 bh" are products
_COUNT = re.compile(rf"(-?[0-9][0-9,.]*(?:/[0-9]+)?) ({_THING}(?: {_THING})?)")
_DEGREES = re.compile(r'(-?(?:[0-9.]++|\\frac\{[0-9]++\}\{[0-9]++\}))\s*+"?degrees?(?![A-Za-z])"?')


def grade_math(
    response: str,
    gold: str | list[str],
    *,
    question: str | None = None,
    formats: Sequence[str] = ("boxed",),
    timeout: float = 5.0,
    tolerance: float | None = None,
    allow_unsandboxed: bool = False,
    workers: MathWorkers | None = None,
) -> Verdict:
    r"""Grade a response. Thread-safe. No response raises. The cheap match takes well below a millisecond.

    Args:
        gold: the answer, or several of which any is accepted. Several that are all needed are a single string, `2, 3`.
        question: the prompt. Its formulas decide whether an answer in another form than the gold is a copy.
        formats: where an answer may stand (`answers.final_answer`), in the order in which they are tried.
        timeout: limit of a comparison with a gold in a worker [s].
        tolerance: accept a number within this absolute distance of the gold.
        workers: workers whose hosts to use; default: this process's, made on first use.

    The verdict has `answer` and `method`. If the processes of a comparison were killed from outside, it is the failure
    WORKER_DIED.

    Raises:
        ValueError: the gold is empty or no text, a format is unknown, or the tolerance or the timeout is no sensible
            number.
        JailError: a worker is needed and no jail works here.
    """
    started = time.perf_counter()
    golds = [tidy(as_latex(text)) for text in checked_golds(gold)]
    if not timeout > 0:
        raise ValueError(f"timeout must be above 0 seconds: got {timeout}; use e.g. 5.0")
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance must be a distance of at least 0: got {tolerance}; use e.g. 0.1 or None")
    formats = check_formats(formats)
    answer, method, reason = None, "none", Reason.NOT_TEXT
    if isinstance(response, str):
        answer, reason = final_answer(response, formats)
        if reason is None:
            terms = _Terms(timeout, None if tolerance is None else Fraction(tolerance), question)
            workers = workers or default_workers(allow_unsandboxed)
            try:
                method, reason = _compared(tidy(as_latex(answer)), golds, terms, workers)
            except WorkerDiedError as error:
                shown, seconds = answer[:_SHOWN], time.perf_counter() - started
                return Verdict(None, None, Failure.WORKER_DIED, answer=shown, detail=str(error), seconds=seconds)
    shown, seconds = answer and answer[:_SHOWN], time.perf_counter() - started
    return Verdict(reason is None, reason, answer=shown, method=method, seconds=seconds)


@dataclass(frozen=True)
class _Terms:
    """What a comparison needs besides its two texts."""

    timeout: float
    tolerance: Fraction | None
    question: str | None

    @property
    def formulas(self) -> tuple[str, ...] | None:
        return None if self.question is None else formulas_of(self.question)


def _compared(answer: str, golds: list[str], terms: _Terms, workers: MathWorkers) -> tuple[str, Reason | None]:
    """Return the method, and why the answer equals none of the golds; None if it equals a gold."""
    matches = [_match(gold, answer, terms) for gold in golds]
    undecided = [match for match in matches if isinstance(match, tuple)]
    if None in matches or not undecided:
        return "normalized", None if None in matches else matches[0]
    for wanted, candidate in undecided:
        near = None if terms.tolerance is None else float(terms.tolerance)
        formulas = terms.formulas and [formula for formula in terms.formulas if refusal(formula, wanted) is None]
        correct, reason = workers.compare(wanted, candidate, terms.timeout, near, formulas)
        if correct:
            return "math_verify", None
    return "math_verify", reason or Reason.WRONG


def _match(gold: str, answer: str, terms: _Terms) -> Reason | tuple[str, str] | None:
    """Compare two tidy texts. Return None (equal), why they differ, or two texts that a worker has to compare."""
    if (wanted := read_number(gold)) and (
        value := read_number(answer) or read_number(_counted(answer, terms.question))
    ):
        return _decided(wanted, value, same(wanted, value, terms.tolerance))
    if _far_apart(gold, answer):
        return Reason.WRONG
    gold, answer = concluded(gold), concluded(answer)
    (gold_choice, gold), (choice, answer) = _without_choice(gold), _without_choice(answer)
    if choice and _LETTER.fullmatch(squeeze(gold)):  # "(B) C" is one choice, not two
        return None if choice == squeeze(gold) else Reason.WRONG
    if gold_choice and choice and (gold_choice != choice or not (gold and answer)):
        return None if gold_choice == choice else Reason.WRONG
    gold, answer = gold or gold_choice, answer or choice
    if (gold_choice and squeeze(answer) == gold_choice) or (choice and squeeze(gold) == choice):
        return None
    (gold, gold_condition), (answer, condition) = without_condition(gold), without_condition(answer)
    if not agree(gold_condition, condition):
        return Reason.WRONG
    answer = renamed(answer, condition, gold_condition)
    (subject, gold), (name, answer) = as_intervals(gold), as_intervals(answer)
    if subject and name and subject != name:
        return Reason.WRONG
    gold, answer = _of_one_kind(gold, answer, terms)
    (gold, gold_unit), (answer, answer_unit) = _without_unit(gold), _without_unit(answer)
    if gold_unit and answer_unit and gold_unit != answer_unit:
        return Reason.WRONG
    wanted, value = read_value(gold), read_value(answer)
    if isinstance(wanted, ValueGroup) and isinstance(value, Number):
        value = read_value(answer.replace(",", ", "))  # 100,200 is a number, and two where two are asked for
    solved = value if subject else wanted
    if bool(subject) != bool(name) and isinstance(solved, ValueGroup) and not solved.brackets:
        return Reason.WRONG  # the ends of an inequality's interval do not solve it
    equal = same(wanted, value, terms.tolerance)
    if equal is not None and not ("10^" in gold and isinstance(value, Text)):  # 10^{-30} is also \frac{1}{10^{30}}
        return _decided(wanted, value, equal)
    gold, answer = _without_names(gold, answer)
    if not readable(gold, commands(gold)):
        return Reason.WRONG  # a gold with words: only the same words will do
    if refused := refusal(answer, gold):
        return refused
    if ("=" in gold) != ("=" in answer) and not isinstance(wanted, ValueGroup) and not isinstance(value, ValueGroup):
        return Reason.WRONG  # math-verify takes 2x=3 for 3, and 4 for xy=4
    return gold, answer


def _far_apart(gold: str, answer: str) -> bool:
    """Return whether both end on approximations, which differ by more than a twentieth: -0.9 and 0.9."""
    about = [read_number(parts[-1].strip()) for parts in map(ABOUT.split, (gold, answer)) if len(parts) > 1]
    if len(about) < 2 or None in about:
        return False
    wanted, other = (number.value for number in about)
    return abs(wanted - other) > max(abs(wanted), abs(other)) / 20


def _counted(text: str, question: str | None) -> str:
    """Return a number of things, in words, as a number with a unit; other texts stay unchanged.

    Args:
        question: the prompt, which must have the first of the words or its singular; None if it is not known.

    >>> _counted("42 dogs", None), _counted("42 dogs", "How many cats?"), _counted("two dogs", None)
    ('42 "dogs"', '42 dogs', 'two dogs')
    """
    match = _COUNT.fullmatch(text)
    if match is None or (question and match[2].split()[0].lower().removesuffix("s") not in question.lower()):
        return text
    return f'{match[1]} "{match[2]}"'


def _decided(wanted: Value, value: Value, equal: bool) -> Reason | None:
    lazy = isinstance(wanted, Number) and (isinstance(value, Text) or not getattr(value, "reduced", True))
    return None if equal else Reason.UNEVALUATED if lazy else Reason.WRONG


def _of_one_kind(gold: str, answer: str, terms: _Terms) -> tuple[str, str]:
    """Return both as lists in one notation; without the quantity that only one names; angles in the gold's measure."""
    gold, answer = as_list(gold), as_list(answer)
    if ("=" in answer and "=" not in gold) or (r"\equiv" in answer and r"\mod" not in gold):
        answer = value_of(answer, frozenset(map(squeeze, terms.formulas or ())))
    elif "=" in gold and "=" not in answer:
        gold = value_of_named(gold)
    if (function := _FUNCTION.match(gold)) and (other := _FUNCTION.match(answer)) and function[1] == other[1]:
        answer = _with_argument(answer, other[2], function[2])
    if r"\pi" in gold:
        answer = _in_radians(answer)
    elif r"\pi" in answer:
        gold = _in_radians(gold)
    return gold, answer


def _with_argument(text: str, old: str, new: str) -> str:
    """Return a function in another variable, which it must not have yet: `f(y)=2y` is `f(x)=2x`."""
    if old == new or re.search(rf"(?<![A-Za-z\\]){new}|(?<=[0-9a-z]){new}", COMMAND.sub(" ", text)):
        return text
    return re.sub(rf"(?<![A-Za-z\\]){old}(?![A-Za-z])", new, text)


def _in_radians(text: str) -> str:
    def radians(match: re.Match[str]) -> str:
        if (number := read_number(match[1])) is None:
            return match[0]
        turn = number.value / 180
        return rf"\frac{{{turn.numerator}\pi}}{{{turn.denominator}}}"

    return _DEGREES.sub(radians, text)


def _without_choice(text: str) -> tuple[str, str]:
    """Split off the letter of a multiple choice that comes before its value: `"(B)" 17`."""
    match = _CHOICE.fullmatch(text)
    return (match[1] or match[2] or match[3], match[4] or "") if match else ("", text)


def _without_unit(text: str) -> tuple[str, frozenset[str]]:
    """Return a number that is not rational without its unit, and the unit: `2\\pi "cm"`. Other texts stay unchanged."""
    bare, unit, scale = split_unit(text)
    if bare == text or unit is None or scale != 1 or isinstance(read_value(text), Number):
        return text, frozenset()
    if '"' in bare or not bare.strip() or has_variables(bare):
        return text, frozenset()
    return bare.strip(), unit


def _without_names(gold: str, answer: str) -> tuple[str, str]:
    """Return both without `x =`, if the name is the same or a side has none."""
    (gold_name, gold_value), (name, value) = without_name(gold), without_name(answer)
    if gold_name == name or (not name and "=" not in answer) or (not gold_name and "=" not in gold):
        return gold_value, value
    return gold, answer


def checked_golds(gold: str | list[str]) -> list[str]:
    """Return the golds. Raises ValueError: there is none, or one is empty, too long or no text."""
    golds = [gold] if isinstance(gold, str) else gold
    if not isinstance(golds, list | tuple) or not golds:
        raise ValueError(f"gold must be an answer or a list of equal answers: got {str(gold)[:80]!r}")
    for text in golds:
        if not isinstance(text, str) or len(text) > MAX_ANSWER or not _holds_answer(text):
            raise ValueError(
                f"a gold must be text of 1 to {MAX_ANSWER} characters: got {str(text)[:80]!r}; use e.g. '42' or '2, 3'"
            )
    return golds


@functools.lru_cache(maxsize=10_000)  # rows of a data set share answers
def _holds_answer(text: str) -> bool:
    return text.isdecimal() or bool(tidy(text))
