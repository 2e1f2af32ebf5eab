"""Thin entry points: parse, call, print. What they need beyond `pip install .` is the extra `tools` or `cluster`."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from openrlhf_shear.preflight.refusal import INSTALL
from openrlhf_shear.report.tools import INSTALL_TOOLS, TOOLS


def prog(module: str) -> str:
    """How a command was called: `shear-...` of pyproject.toml, or by its module."""
    script = Path(sys.argv[0]).name
    return script if script.startswith("shear-") else f"python -m openrlhf_shear.cli.{module}"


def _remedy(module: str) -> str:
    """What to install where a module is missing; "" where that is not for want of an extra."""
    if module.partition(".")[0] in TOOLS:
        return f"needs the extra [tools]: {module} is not installed; {INSTALL_TOOLS}"
    if find_spec("openrlhf") is None:
        return f"needs the extra [cluster]: {module} is not installed; {INSTALL}"
    return ""


def _without_the_extra(kind: type[BaseException], error: BaseException, trace) -> None:
    """Shows an uncaught exception; where it is for want of an extra, in one line. Python then ends with 1."""
    if issubclass(kind, ModuleNotFoundError) and (remedy := _remedy(error.name or "")):
        print(f"{prog(Path(sys.argv[0]).stem)}: error: {remedy}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


_installed = bool(sys.argv) and Path(sys.argv[0]).name == prog("")
if _installed:
    sys.path.insert(0, os.getcwd())  # as `python -m` does: for rules that lie here
if _installed or sys.argv[:1] == ["-m"]:  # as it is while Python looks for the module that it was asked to run
    sys.excepthook = _without_the_extra
