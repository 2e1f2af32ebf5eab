"""Imports of modules by their names of version 0.1, for one release: `import openrlhf_shear.ot` finds `transport`.

The first import of each old name warns. Python asks this finder first: the folder of `transport` would give it a second
`search` for `openrlhf_shear.ot.search`.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

_PACKAGE = "openrlhf_shear"
_SAMPLING = "batches engine engine_gap engine_process engine_sampler engines gap_watch order prompt_data samples"
_START = "attempts cluster console doctor fingerprint launch loopback machine outcome own_ray relay signals story"
_UPDATE = "actor another_world arrival checkpoints contents critic lora meter saveable strategy update"
_EXPERIENCE = "experience_maker fillers graded_experience prm schedule shaping states"
_ROOMS = {  # new folder: its modules that were in fork/
    "train": "contract diagnosis hooks trainer upstream",
    "train.start": _START,
    "train.sampling": _SAMPLING,
    "train.experience": _EXPERIENCE,
    "train.update": _UPDATE,
    "train.accounts": "books curves tracking",
    "train.cpu": "flash_attn_stand_in ring_flash_attn_stand_in",
}
# old name: new name; a folder stands for all that is in it
MOVED = {f"fork.{name}": f"{room}.{name}" for room, names in _ROOMS.items() for name in names.split()} | {
    "arithmetic": "tasks.arithmetic",
    "arithmetic.word_problems": "tasks.word_problems.problems",
    "cli.flags": "line.flags",
    "cli.frame": "line.frame",
    "cli.run_file": "line.run_file",
    "cli.warm_up_ledger": "cli.warm_up_bookkeeping",
    "fork": "train",
    "fork.cpu_backend": "train.cpu.backend",
    "fork.rollout_dump": "train.accounts.dump",
    "fork.training_suite": "train.accounts.suite",
    "ledger": "tasks.bookkeeping",
    "ot": "transport",
    "preflight.doctor": "doctor",
    "preflight.keys": "line.keys",
    "preflight.legacy": "line.legacy",
    "preflight.memory_check": "preflight.memory",
    "preflight.model_shape": "memory.model_shape",
    "preflight.placement": "line.placement",
    "preflight.refusal": "line.values",
    "rewards.jail.hosts": "rewards.code.hosts",
    "rewards.jail.inside.plain": "rewards.code.inside.plain",
    "rewards.jail.inside.prelude": "rewards.code.inside.prelude",
    "rewards.jail.inside.worked": "rewards.maths.inside.worked",
    "rewards.ledger": "train.accounts.accounts",
}


def new_name(name: str) -> str | None:
    """Return the name of today of a module; None if the module has not moved."""
    parts = name.split(".")
    for end in range(len(parts) if parts[0] == _PACKAGE else 0, 1, -1):
        if new := MOVED.get(".".join(parts[1:end])):
            return ".".join([_PACKAGE, new, *parts[end:]])
    return None


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None):
        """Return the spec of a module that has moved."""
        new = new_name(name)
        there = importlib.util.find_spec(new) if new else None
        return importlib.machinery.ModuleSpec(name, self, origin=there.origin) if there else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Import the module by its new name."""
        new = new_name(spec.name)
        warnings.warn(f"{spec.name} has moved to {new}; use {new}", FutureWarning, stacklevel=2)
        module = importlib.import_module(new)
        self._specs = getattr(self, "_specs", {}) | {spec.name: module.__spec__}
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back, which Python has replaced by the old name's."""
        module.__spec__ = self._specs.pop(module.__spec__.name)

    def get_code(self, name: str):
        """Return the module's code, for `python -m`."""
        spec = importlib.util.find_spec(new_name(name))
        return spec.loader.get_code(spec.name)


def install() -> None:
    """Let Python find modules by their old names."""
    sys.meta_path.insert(0, _Finder())
