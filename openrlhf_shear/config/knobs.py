"""What a knob is, and what the classes that hold knobs have in common."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import Field, field, fields


def knob(default, help: str, choices: tuple[str, ...] | None = None, fallback: str | None = None):
    """A dataclass field that a flag can be made of (`cli.frame.add_knob`).

    Args:
        fallback: the destination of the flag whose value is taken where this one is unset.
    """
    return field(default=default, metadata={"help": help, "choices": choices, "fallback": fallback})


def positive(value: float) -> bool:
    """Above 0 and finite."""
    return math.isfinite(value) and value > 0


def require_all(config, prefix: str, *requirements: tuple[str, bool, str, str]) -> None:
    """Every choice is one of those there are, and all requirements hold.

    Args:
        prefix: of the knobs' names in messages.
        requirements: (field, whether its value is right, what is wrong otherwise, what to use) each.

    Raises:
        ValueError: the first that does not hold.
    """
    for name, holds, problem, remedy in (*requirements, *_choices(config)):
        if not holds:
            raise ValueError(f"{prefix}.{name} {problem}: got {getattr(config, name)!r}; use {remedy}")


def _choices(config) -> Iterator[tuple[str, bool, str, str]]:
    each: Field
    for each in fields(config):
        if choices := each.metadata.get("choices"):
            yield each.name, getattr(config, each.name) in choices, "is not known", "one of " + ", ".join(choices)
