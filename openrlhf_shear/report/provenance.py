"""Where results come from: commit, command, machine, versions."""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "transformers", "numpy", "scipy", "numba")


def provenance() -> dict:
    """What to keep beside results that are to be believed later; the commit is None outside a checkout, and ends in `+`
    where the package's files differ from it."""
    script = Path(sys.argv[0])
    module = script.with_suffix("").name
    command = ["-m", f"openrlhf_shear.cli.{module}"] if script.parent.name == "cli" else [script.name]
    return {
        "commit": commit(),
        "command": shlex.join(["python", *command, *sys.argv[1:]]),
        "machine": f"{cpu_model()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version(), **{name: package_version(name) for name in PACKAGES}},
    }


def distinct(made: Iterable[Mapping | None]) -> list[Mapping]:
    """Of many results' provenances the first of every commit, machine and set of versions; None says nothing.

    >>> one = {"commit": "c0ffee", "command": "python x", "machine": "a CPU", "versions": {"torch": "2"}}
    >>> distinct([one, None, one | {"command": "python y"}]) == [one]
    True
    """
    kinds = {}
    for one in made:
        if one is not None:
            kinds.setdefault((one["commit"], one["machine"], *one["versions"].items()), one)
    return [*kinds.values()]


def commit() -> str | None:
    """Of the package's checkout, with `+` where its files differ; None outside one."""
    here = Path(__file__).parents[1]

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here, check=True, capture_output=True, text=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def cpu_model() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def package_version(package: str) -> str | None:
    """None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
