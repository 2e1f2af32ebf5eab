"""The simulator's view of every prefix of a response: the running value that its steps have reached.

All that follows a finished step depends on the value that the step wrote, whether it is right or wrong. Fillers and the
order of operands decide nothing; a result's first digit does. No value is wrong for good: a later step may err back.
"""

import re

from openrlhf_shear.tasks.arithmetic.problems import FILLERS, LETTERS, ChainProblem, operand
from openrlhf_shear.tasks.situation import LOST, Situation


def situations(problem: ChainProblem, text: str) -> list[Situation]:
    """Return the situation before each character and after the last (`len(text) + 1`).

    The key is the number of finished steps and the value of the last, with the first digit of a result at which the
    text has arrived. Miscopied operands lose the thread until the step's result; any other text loses it for good.
    """
    step, value, partial = 0, problem.start, ""
    found = [Situation((step, value))]
    for sign in text:
        if partial or sign not in FILLERS or step == len(problem.operations):
            partial += sign
            situation = _within(problem, step, value, partial)
            if situation is None:
                break
        else:
            situation = Situation((step, value))
        found.append(situation)
        if partial.endswith(";"):
            (step, value), partial = situation.key, ""
    return found + [LOST] * (len(text) + 1 - len(found))


def _within(problem: ChainProblem, step: int, value: int, partial: str) -> Situation | None:
    """Return the situation in a step, or in the answer, from its text so far; None where the text is neither."""
    if step == len(problem.operations):
        return Situation((step, value)) if f"#{value:02d}".startswith(partial) else None
    form = re.fullmatch(LETTERS[step] + r"([-+x\d]*)(?:=(\d\d;|\d{0,2}))?", partial)
    if form is None:
        return None
    operands, result = form.groups()
    sign, number = problem.operations[step]
    a, b = f"{value:02d}", operand(sign, number)
    copies = a + sign + b, f"-{b}+{a}" if sign == "-" else b + sign + a
    if result and len(result) > 1:
        return Situation((step + 1, int(result[:2])))
    if not (operands in copies if result is not None else any(copy.startswith(operands) for copy in copies)):
        return LOST
    return Situation((step, value, result) if result else (step, value))
