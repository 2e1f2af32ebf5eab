"""Hints at the flags of training for names of TRL, of verl, and by habit; `foreign.toml` has the names."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from openrlhf_shear.config.refusal import did_you_mean

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
NAMES: dict[str, tuple[str, str]] = {  # by name: the trainer that has it, and what to use here
    name: (trainer, use) for trainer in ("TRL", "verl") for name, use in _TABLE[trainer].items()
}
ESTIMATORS: dict[str, list[str]] = _TABLE["estimators"]
NEAR: dict[str, str] = _TABLE["near"]


def near(name: str) -> str | None:
    """Return the flag here that a name elsewhere stands for, perhaps in another section; None if it is unknown.

    >>> near("lr"), near("actor.learning_rate")
    ('actor.adam.lr', 'actor.adam.lr')
    """
    _, use = NAMES.get(name.rpartition(".")[2], ("", ""))
    return NEAR.get(name) or (use.removeprefix("--") if use.startswith("--") and " " not in use else None)


def meant(name: str, known: Sequence[str]) -> str:
    """Return a hint at the name among `known` that another trainer calls `name`, else at the nearest; "" if none is.

    >>> meant("grpo", ["gae", "group_norm"]), meant("SHEAR", ["shear"])
    (' (grpo is group_norm here)', ' (did you mean shear?)')
    """
    here = next((each for each in ESTIMATORS.get(name.lower(), ()) if each in known), None)
    return f" ({name} is {here} here)" if here else did_you_mean(name.lower(), known)
