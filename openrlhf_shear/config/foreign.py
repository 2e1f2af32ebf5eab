"""Hints at the flags of training for names of TRL, of verl, and by habit; `foreign.toml` has the names."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

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


def known_as(name: str, known: Sequence[str]) -> str | None:
    """Return the name among `known` that an estimator of another trainer has here; None if it has none.

    >>> known_as("grpo", ["gae", "group_norm"])
    'group_norm'
    """
    return next((here for here in ESTIMATORS.get(name.lower(), ()) if here in known), None)
