"""Flags of TRL and verl, translated into those of training; `foreign.toml` has the names.

A flag that means the same is translated. A flag that another flag resembles, in other units or with a condition, is
refused with that flag. OpenRLHF's own older spellings, some of which TRL uses too (`--seed`, `--save_steps`), are left
to `legacy`.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from openrlhf_shear.config.refusal import Findings, Refusal, Told

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RENAMES: dict[str, tuple[str, str]] = {
    name: (trainer, new) for trainer, names in _TABLE["renames"].items() for name, new in names.items()
}
REMEDIES: dict[str, tuple[str, str]] = {
    name: (trainer, use) for trainer, names in _TABLE["remedies"].items() for name, use in names.items()
}
ESTIMATORS: dict[str, list[str]] = _TABLE["estimators"]
NEAR: dict[str, str] = _TABLE["near"]
_ESTIMATOR = "algorithm.adv_estimator"


def translate(argv: Sequence[str], findings: Findings) -> list[str]:
    """Return `argv` with the flags of TRL and verl replaced; note what was replaced, and refuse what cannot be.

    >>> translate(["--num_generations", "8", "trainer.total_epochs=2"], Findings())
    ['--rollout.n_samples_per_prompt', '8', '--train.num_episodes=2']
    """
    line: list[str] = []
    renamed: dict[str, dict[str, str]] = {}
    refused = False  # whether the last flag was refused, so that its values are dropped
    for word in argv:
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").removeprefix("+")
        trainer, _ = RENAMES.get(name) or REMEDIES.get(name) or ("", "")
        is_flag = flag.startswith("--") or (bool(equals) and trainer == "verl")  # TRL has no KEY=VALUE
        if is_flag and name in RENAMES:
            trainer, new = RENAMES[name]
            renamed.setdefault(trainer, {})[flag] = f"--{new}"
            if name == _ESTIMATOR:
                value = ESTIMATORS.get(value, [value])[0]
            line.append(f"--{new}{equals}{value}")
        elif is_flag and name in REMEDIES:
            trainer, use = REMEDIES[name]
            findings.refusals.append(Refusal(name, f"is {trainer}'s flag, and has no equal here", use=use))
        elif not (refused and not word.startswith("--")):
            line.append(word)
        refused = (is_flag and name in REMEDIES) or (refused and not word.startswith("--"))
    if renamed and not any(word.startswith("--") and "kl" in word.partition("=")[0] for word in line):
        other = " and ".join(renamed)
        told = f"the KL coefficient is OpenRLHF's 0.01 here, and 0 in {other}; use --algo.kl.init_coef 0 for none"
        findings.told.append(Told(told))
    for trainer, names in renamed.items():
        spellings = ", ".join(f"{old} -> {new}" for old, new in names.items())
        findings.told.append(Told(f"flags of {trainer} were used; here they are: {spellings}", "Info"))
    return line


def knows(name: str) -> bool:
    """Return whether another trainer has a flag of this name."""
    return name in RENAMES or name in REMEDIES


def near(name: str) -> str | None:
    """Return the flag here that a name elsewhere stands for, perhaps in another section; None if it is unknown.

    >>> near("lr"), near("actor.learning_rate")
    ('actor.adam.lr', 'actor.adam.lr')
    """
    last = name.rpartition(".")[2]
    return NEAR.get(name) or (RENAMES[last][1] if last in RENAMES else None)


def known_as(name: str, known: Sequence[str]) -> str | None:
    """Return the name among `known` that an estimator of another trainer has here; None if it has none.

    >>> known_as("grpo", ["gae", "group_norm"])
    'group_norm'
    """
    return next((here for here in ESTIMATORS.get(name.lower(), ()) if here in known), None)
