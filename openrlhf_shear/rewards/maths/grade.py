r"""The maths reward: whether a response's final answer is the gold answer (docs/rewards.md says what counts as equal).

`text` finds the last `\boxed{}`. The cheap match (`values`) settles numbers, lists, sets, tuples, intervals and equal
texts. An answer that it leaves open must pass a whitelist (`guard`). Then math-verify compares it, in a jailed child
that is killed at its deadline (`workers`). Only math-verify's LaTeX grammar is used: plain expressions go through
`parse_expr`, which is `eval`.
"""

import math
import time
from fractions import Fraction

import regex as re

from openrlhf_shear.rewards.maths.guard import commands, has_variables, readable, refusal
from openrlhf_shear.rewards.maths.numbers import Number, split_unit
from openrlhf_shear.rewards.maths.ranges import as_intervals
from openrlhf_shear.rewards.maths.text import MAX_ANSWER, final_answer, squeeze, tidy
from openrlhf_shear.rewards.maths.values import Text, ValueGroup, read, same, without_name
from openrlhf_shear.rewards.maths.workers import MathWorkers, WorkerDiedError, default_workers
from openrlhf_shear.rewards.verdict import Verdict

_SHOWN = 500
_CHOICE = re.compile(r'"?+\(([A-E])\)"?+\s*+([^\s*+/^=-].*)')


def grade_math(
    response: str,
    gold: str | list[str],
    *,
    timeout: float = 5.0,
    tolerance: float | None = None,
    allow_unsandboxed: bool = False,
    workers: MathWorkers | None = None,
) -> Verdict:
    r"""Grade a response. Thread-safe. No response raises. The cheap match takes well below a millisecond.

    Args:
        gold: the answer, or several of which any is accepted. Several that are all needed are a single string, `2, 3`.
        timeout: limit of a comparison with a gold in a worker [s].
        tolerance: accept a number within this absolute distance of the gold.
        workers: workers whose hosts to use; default: this process's, made on first use.

    The verdict has `answer` and `method`. Reasons: "no_answer", "not_text", "too_long", "wrong", "unevaluated" (see
    `guard`), "unreadable", "too_large", "unparsable", "gold_unparsable", "timeout", "memory" or "crashed". If the
    processes of a comparison were killed from outside, there is no verdict but the failure "worker died".

    Raises:
        ValueError: the gold is empty or no text, or the tolerance or the timeout is no sensible number.
        JailError: a worker is needed and no jail works here.
    """
    started = time.perf_counter()
    golds = tidy_golds(gold)
    if not timeout > 0:
        raise ValueError(f"timeout must be above 0 seconds: got {timeout}; use e.g. 5.0")
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance must be a distance of at least 0: got {tolerance}; use e.g. 0.1 or None")
    answer, method, reason = None, "none", "not_text"
    if isinstance(response, str):
        answer, reason = final_answer(response)
        if reason is None:
            workers = workers or default_workers(allow_unsandboxed)
            try:
                method, reason = _compared(tidy(answer), golds, timeout, tolerance, workers)
            except WorkerDiedError as error:
                seconds = time.perf_counter() - started
                return Verdict(None, failure="worker died", answer=answer[:_SHOWN], detail=str(error), seconds=seconds)
    shown, seconds = answer and answer[:_SHOWN], time.perf_counter() - started
    return Verdict(reason is None, reason, answer=shown, method=method, seconds=seconds)


def _compared(
    answer: str, golds: list[str], timeout: float, tolerance: float | None, workers: MathWorkers
) -> tuple[str, str | None]:
    """Return the method, and why the answer equals none of the golds; None if it equals a gold."""
    near = None if tolerance is None else Fraction(tolerance)
    matches = [_match(gold, answer, near) for gold in golds]
    undecided = [match for match in matches if isinstance(match, tuple)]
    if None in matches or not undecided:
        return "normalized", None if None in matches else matches[0]
    for pair in undecided:
        correct, reason = workers.compare(*pair, timeout, tolerance)
        if correct:
            return "math_verify", None
    return "math_verify", reason or "wrong"


def _match(gold: str, answer: str, tolerance: Fraction | None) -> str | tuple[str, str] | None:
    """Compare two tidy texts. Return None (equal), why they differ, or two texts that a worker has to compare."""
    (gold_choice, gold), (choice, answer) = _without_choice(gold), _without_choice(answer)
    if gold_choice and choice and gold_choice != choice:
        return "wrong"
    if (gold_choice and squeeze(answer) == gold_choice) or (choice and squeeze(gold) == choice):
        return None
    (subject, gold), (name, answer) = as_intervals(gold), as_intervals(answer)
    if subject and name and subject != name:
        return "wrong"
    (gold, gold_unit), (answer, answer_unit) = _without_unit(gold), _without_unit(answer)
    if gold_unit and answer_unit and gold_unit != answer_unit:
        return "wrong"
    wanted, value = read(gold), read(answer)
    if isinstance(wanted, ValueGroup) and isinstance(value, Number):
        value = read(answer.replace(",", ", "))  # 100,200 is a number, and two where two are asked for
    equal = same(wanted, value, tolerance)
    if equal is not None:
        lazy = isinstance(wanted, Number) and (isinstance(value, Text) or not getattr(value, "reduced", True))
        return None if equal else "unevaluated" if lazy else "wrong"
    gold, answer = _without_names(gold, answer)
    if not readable(gold, commands(gold)):
        return "wrong"  # a gold with words: only the same words will do
    if refused := refusal(answer, gold):
        return refused
    if ("=" in gold) != ("=" in answer) and not isinstance(wanted, ValueGroup) and not isinstance(value, ValueGroup):
        return "wrong"  # math-verify takes 2x=3 for 3, and 4 for xy=4
    return gold, answer


def _without_choice(text: str) -> tuple[str, str]:
    """Split off the letter of a multiple choice that comes before its value: `"(B)" 17`."""
    match = _CHOICE.fullmatch(text)
    return (match[1], match[2]) if match else ("", text)


def _without_unit(text: str) -> tuple[str, frozenset[str]]:
    """Return a number that is not rational without its unit, and the unit: `2\\pi "cm"`. Other texts stay unchanged."""
    bare, unit, scale = split_unit(text)
    if bare == text or unit is None or scale != 1 or isinstance(read(text), Number):
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


def tidy_golds(gold: str | list[str]) -> list[str]:
    """Return the golds as they are compared. Raises ValueError: there is none, or one is empty, too long or no text."""
    golds = [gold] if isinstance(gold, str) else gold
    if not isinstance(golds, list | tuple) or not golds:
        raise ValueError(f"gold must be an answer or a list of equal answers: got {str(gold)[:80]!r}")
    for text in golds:
        if not isinstance(text, str) or not tidy(text[:MAX_ANSWER]) or len(text) > MAX_ANSWER:
            raise ValueError(
                f"a gold must be text of 1 to {MAX_ANSWER} characters: got {str(text)[:80]!r}; use e.g. '42' or '2, 3'"
            )
    return [tidy(text) for text in golds]
