"""Keys and tokens of a command line: read them from where it points, and hide them from every output."""

import os
from collections.abc import Iterator
from pathlib import Path

from openrlhf_shear.config.refusal import Finding, Told, refuse
from openrlhf_shear.config.secrets import REWARD_TOKEN, WANDB_KEY, Secret, hidden
from openrlhf_shear.line.values import Values

_FLAG = "logger.wandb.key"
_LEAST = 20  # characters of a key; with a shorter text (as in `--use_wandb True`) the node's login applies


def take(values: Values) -> Iterator[Finding]:
    """Read W&B's key from the place that the command line names, and turn each text with a secret into a `Secret`.

    Warn of secrets on the command line itself. Refuse a place without a key.
    """
    key = values[_FLAG]
    if key:
        values[_FLAG] = Secret(_wandb_key(key))
        if values[_FLAG] == key and len(key) >= _LEAST:
            yield _seen(f"--{_FLAG}", f"--{_FLAG} env with {WANDB_KEY} set, or a file that holds it")
    for name, value in values.items():
        if type(value) is str and (shown := hidden(value)) != value:
            values[name] = Secret(value, shown)
            if name == "reward.remote_url":
                yield _seen(f"a token in --{name}", f"--reward.token_file or the environment's {REWARD_TOKEN}")


def _wandb_key(key: str) -> str:
    if key == "env":
        if not os.environ.get(WANDB_KEY):
            problem = f"is to come from the environment, which has no {WANDB_KEY}"
            refuse(_FLAG, problem, key, "a file that holds the key")
        return os.environ[WANDB_KEY]
    if not os.path.isfile(key):
        if os.sep in key or os.path.splitext(key)[1]:  # no key has a slash or a dot
            refuse(_FLAG, "names a file that is not there", key, "a file that holds the key")
        return key
    try:
        held = Path(key).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        refuse(_FLAG, f"names a file that cannot be read ({type(error).__name__})", key, "a file that holds the key")
    if len(held.split()) != 1:
        refuse(_FLAG, "names a file that does not hold one key", key, "a file with the key in its first line")
    return held


def _seen(what: str, instead: str) -> Told:
    return Told(f"`ps` and Ray's list of jobs show {what} to others; use {instead}")
