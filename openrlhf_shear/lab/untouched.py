"""Check that a rule only returns its credit: input, policy, optimizer, random numbers and code stay as they are."""

import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from openrlhf_shear.credit.checks import CreditRuleError

_PACKAGES = ("openrlhf_shear.lab", "openrlhf_shear.tasks", "openrlhf_shear.credit", "torch.optim")


@contextmanager
def untouched(rule: str, read: Callable[[], Mapping[str, object]]) -> Iterator[None]:
    """Compare what `read` returns before and after the block, bit for bit, and the global random numbers.

    Args:
        rule: the rule's name.
        read: returns name -> tensors, numbers and texts, in sequences and mappings; other objects are not compared.

    Raises:
        CreditRuleError: something differs; the message names it.
    """
    before = _digests(read())
    yield
    after = _digests(read())
    changed = [name for name in before if before[name] != after[name]]
    if changed:
        raise CreditRuleError(f"{rule} changed {', '.join(changed)}; a rule may only return its credit")


def code() -> dict[str, int]:
    """Return the identity of each function, class and method of lab, tasks, rules and torch's optimizers."""
    found = {}
    for module, there in [*sys.modules.items()]:
        if module.startswith(_PACKAGES):
            for name, value in [*vars(there).items()]:
                if callable(value) and str(getattr(value, "__module__", "")).startswith(_PACKAGES):
                    found[f"{module}.{name}"] = id(value)
                    methods = vars(value).items() if isinstance(value, type) else ()
                    found |= {f"{module}.{name}.{method}": id(each) for method, each in methods if callable(each)}
    return found


def refuse_new_code(rule: str, before: Mapping[str, int]) -> None:
    """Raise CreditRuleError if a function of `code` is another one than before."""
    now = code()
    changed = sorted(name for name, at in before.items() if now.get(name) != at)
    if changed:
        raise CreditRuleError(f"{rule} replaced {', '.join(changed)}; a rule may only return its credit")


def _digests(what: Mapping[str, object]) -> dict[str, str]:
    draws = {"torch's random numbers": torch.get_rng_state(), "numpy's": np.random.get_state()[1:3]}
    draws["Python's"] = random.getstate()
    found = {}
    for name, value in (what | draws).items():
        digest = hashlib.blake2b()
        _add(digest, value)
        found[name] = digest.hexdigest()
    return found


def _add(digest: "hashlib._Hash", value: object) -> None:
    if isinstance(value, torch.Tensor):
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, np.ndarray):
        digest.update(value.tobytes())
    elif isinstance(value, Mapping):
        _add(digest, [*value.items()])
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for each in value:
            _add(digest, each)
    elif isinstance(value, str | int | float | bool | None):
        digest.update(repr(value).encode())
