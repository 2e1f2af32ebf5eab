"""Reward of the built-in task: `--reward.remote_url openrlhf_shear/tasks/arithmetic/arithmetic.py`."""

from openrlhf_shear.rewards.responses import response_of
from openrlhf_shear.tasks.arithmetic.problems import EOS, PAD, parse_problem
from openrlhf_shear.tasks.arithmetic.solutions import check


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict:
    """Grade a single response by OpenRLHF's reward interface: 1.0 for the right final answer, else 0.0.

    extra_logs (see `solutions.SolutionCheck`) are `lucky`, 1.0 for the right answer through a wrong chain;
    `first_error`, -1.0 without an error; and `miscopied`.

    Raises ValueError: a prompt is not of this task, or its label is not its answer. No response raises.
    """
    (query,), (prompt,), (label,) = queries, prompts, labels
    problem = parse_problem(prompt)
    if str(label) != problem.answer:
        wanted = f"the label of {problem.prompt!r} must be its answer {problem.answer!r}"
        raise ValueError(f"{wanted}: got {str(label)[:80]!r}")
    result = check(problem, response_text(response_of(query, prompt)))
    extra_logs = {
        "lucky": float(result.lucky),
        "first_error": -1.0 if result.first_error is None else float(result.first_error),
        "miscopied": float(result.miscopied),
    }
    return {"rewards": float(result.correct), "scores": float(result.correct), "extra_logs": extra_logs}


def first_error(prompt: str, decoded: str) -> int | None:
    """Return `SolutionCheck.first_error` of a decoded response; None if the prompt is of another task."""
    try:
        problem = parse_problem(prompt)
    except ValueError:
        return None
    return check(problem, response_text(decoded)).first_error


def response_text(decoded: str) -> str:
    """Remove the end-of-text token, and the padding after it, from a decoded response."""
    while decoded.endswith(PAD):
        decoded = decoded.removesuffix(PAD)
    return decoded.removesuffix(EOS)
