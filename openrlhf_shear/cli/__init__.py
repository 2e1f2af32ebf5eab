"""Thin entry points: parse, call, print. What they need beyond `pip install .` is the extra `cluster`."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from openrlhf_shear.preflight.refusal import INSTALL


def prog(module: str) -> str:
    """How a command was called: `shear-...` of pyproject.toml, or by its module."""
    script = Path(sys.argv[0]).name
    return script if script.startswith("shear-") else f"python -m openrlhf_shear.cli.{module}"


def _without_the_extra(kind: type[BaseException], error: BaseException, trace) -> None:
    """Shows an uncaught exception; where it is for want of the extra, in one line. Python then ends with 1."""
    if issubclass(kind, ModuleNotFoundError) and find_spec("openrlhf") is None:
        line = f"error: needs the extra [cluster]: {error.name} is not installed; {INSTALL}"
        print(f"{prog(Path(sys.argv[0]).stem)}: {line}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


_installed = bool(sys.argv) and Path(sys.argv[0]).name == prog("")
if _installed:
    sys.path.insert(0, os.getcwd())  # as `python -m` does: for rules that lie here
if _installed or sys.argv[:1] == ["-m"]:  # as it is while Python looks for the module that it was asked to run
    sys.excepthook = _without_the_extra
