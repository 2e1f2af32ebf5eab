"""What a knob is, and what the classes that hold knobs have in common."""

import math
from dataclasses import field, fields

from openrlhf_shear.config.refusal import LineError, refusal


def knob(default, help: str, choices: tuple[str, ...] | None = None, fallback: str | None = None):
    """A dataclass field that a flag can be made of (`cli.frame.add_knob`); unset, it is that of the flag `fallback`."""
    return field(default=default, metadata={"help": help, "choices": choices, "fallback": fallback})


def positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


def require_all(config, prefix: str, *requirements: tuple[str, bool, str, str]) -> None:
    """Raise a `LineError` of the requirements (field, whether its value is right, what is wrong otherwise, what to use)
    that do not hold, and of unknown choices.
    """
    known = []
    for each in fields(config):
        if some := each.metadata.get("choices"):
            known.append((each.name, getattr(config, each.name) in some, "is not known", f"one of {', '.join(some)}"))
    wrong = [
        refusal(f"{prefix}.{name}", problem, getattr(config, name), remedy)
        for name, holds, problem, remedy in (*requirements, *known)
        if not holds
    ]
    if wrong:
        raise LineError(*wrong)
