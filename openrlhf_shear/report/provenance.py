"""Origin of results: commit, command, machine, versions."""

import functools
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_FIELD = re.compile(r"^([\w ]+?)\s*:\s*(.*)$", re.MULTILINE)  # of /proc/cpuinfo
_BLAS = re.compile(r"(?:Math Kernel Library Version|MKL-DNN|OpenBLAS) v?[\d.]+")
_VECTORS = re.compile(r"avx|fma|amx|sse4|asimd|sve")
PACKAGES = ("torch", "transformers", "numpy", "scipy", "numba")


def provenance() -> dict:
    """Return the record to keep beside results, to check them later.

    The commit is None outside a checkout, and ends in `+` where the package's files differ from it.
    """
    script = Path(sys.argv[0])
    module = script.with_suffix("").name
    command = ["-m", f"openrlhf_shear.cli.{module}"] if script.parent.name == "cli" else [script.name]
    return {
        "commit": commit(),
        "command": shlex.join(["python", *command, *sys.argv[1:]]),
        "machine": ", ".join([_cpu().get("model name", platform.processor()), f"{os.cpu_count()} cores", *_gpus()]),
        "kind": kind(),
        "versions": {"python": platform.python_version(), **{name: package_version(name) for name in PACKAGES}},
    }


def distinct(provenances: Iterable[Mapping | None]) -> list[Mapping]:
    """Return the first provenance of each combination of commit, machine and versions; None entries are skipped.

    >>> first = {"commit": "c0ffee", "command": "python x", "machine": "a CPU", "versions": {"torch": "2"}}
    >>> distinct([first, None, first | {"command": "python y"}]) == [first]
    True
    """
    kinds = {}
    for each in provenances:
        if each is not None:
            kind = json.dumps([each["machine"], each.get("kind")])
            kinds.setdefault((each["commit"], kind, *each["versions"].items()), each)
    return [*kinds.values()]


def kind() -> dict:
    """Return what decides how this machine rounds: CPU, vector instructions, BLAS, threads; None where unknown."""
    fields, torch = _cpu(), sys.modules.get("torch")  # torch is not imported for this: it takes seconds
    return {
        "cpu": [fields.get(name) for name in ("vendor_id", "cpu family", "model", "stepping")],
        "flags": " ".join(sorted(flag for flag in fields.get("flags", "").split() if _VECTORS.match(flag))),
        "blas": _BLAS.findall(torch.__config__.show()) if torch else None,
        "threads": torch.get_num_threads() if torch else None,
    }


def same_kind(first: Mapping | None, second: Mapping | None) -> bool | None:
    """Return whether two provenances are of machines that round alike; None where one does not say."""
    kinds = [made.get("kind") if made else None for made in (first, second)]
    return kinds[0] == kinds[1] if all(kinds) else None


@functools.cache
def commit() -> str | None:
    """Return the commit of the package's checkout, with `+` where its files differ, as they were at the first call.

    None outside a checkout, also where the package is installed inside another one.
    """
    here = Path(__file__).parents[1]

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, check=True, capture_output=True, text=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", str(Path(__file__).relative_to(here)))
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _gpus() -> list[str]:
    """Return the name of this process's GPU, if it computed on one."""
    torch = sys.modules.get("torch")  # not imported for a name: it takes seconds
    return [torch.cuda.get_device_name()] if torch is not None and torch.cuda.is_initialized() else []


def _cpu() -> dict[str, str]:
    """Return the facts about a processor by name; none on a system without /proc/cpuinfo."""
    info = Path("/proc/cpuinfo")
    return dict(_FIELD.findall(info.read_text())) if info.is_file() else {}


def package_version(package: str) -> str | None:
    """Return the installed version of a package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
