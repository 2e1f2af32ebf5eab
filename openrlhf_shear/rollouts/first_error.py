"""Where a rollout first goes wrong, where the task knows it: the built-in chain arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from openrlhf_shear.arithmetic.arithmetic import response_text
from openrlhf_shear.arithmetic.problems import parse_problem
from openrlhf_shear.arithmetic.solutions import check
from openrlhf_shear.rollouts.tokens import token_at


def first_error_token(prompt: str, tokens: Sequence[str]) -> int | None:
    """The first wrong token of a response to a problem of the built-in task.

    None if nothing is wrong, if a right beginning was cut off before its end, or if the prompt is of another task.

    >>> first_error_token("37a+45bx7c-12d+08ex3f-31g+77=", [*"a37+45=82;b7x82=84;", "<eos>"])
    16
    """
    try:
        problem = parse_problem(prompt)
    except ValueError:
        return None
    error = check(problem, response_text("".join(tokens))).first_error
    return None if error is None else token_at(tokens, error)
