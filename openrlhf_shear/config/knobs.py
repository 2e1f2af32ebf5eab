"""Knobs: dataclass fields from which flags are made, and the checks that all classes of knobs share."""

import math
from dataclasses import field, fields

from openrlhf_shear.config.refusal import LineError, refusal


def knob(default, help: str, choices: tuple[str, ...] | None = None, fallback: str | None = None):
    """Make a dataclass field for a flag (`cli.frame.add_knob`); unset, it has the value of the flag `fallback`."""
    return field(default=default, metadata={"help": help, "choices": choices, "fallback": fallback})


def positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def require_all(config, prefix: str, *requirements: tuple[str, bool, str, str]) -> None:
    """Raise a `LineError` of the requirements that fail, and of the fields whose value is not a choice.

    A requirement is (field, whether its value is right, the problem otherwise, the remedy).
    """
    choices = []
    for each in fields(config):
        if some := each.metadata.get("choices"):
            choices.append((each.name, getattr(config, each.name) in some, "is not known", f"one of {', '.join(some)}"))
    wrong = [
        refusal(f"{prefix}.{name}", problem, getattr(config, name), remedy)
        for name, holds, problem, remedy in (*requirements, *choices)
        if not holds
    ]
    if wrong:
        raise LineError(*wrong)
