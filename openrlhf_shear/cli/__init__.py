"""Thin entry points: parse, call, print. Beyond `pip install .` they need the extra `tools` or `cluster`."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from openrlhf_shear.line import prog
from openrlhf_shear.line.run import INSTALL
from openrlhf_shear.report.tools import INSTALL_TOOLS, TOOLS


def what_to_install(module: str) -> str:
    """Return what to install if a module is missing; "" if no extra would bring it."""
    if module.partition(".")[0] in TOOLS:
        return f"needs the extra [tools]: {module} is not installed; {INSTALL_TOOLS}"
    if find_spec("openrlhf") is None:
        return f"needs the extra [cluster]: {module} is not installed; {INSTALL}"
    return ""


def _without_the_extra(kind: type[BaseException], error: BaseException, trace) -> None:
    """Show an uncaught exception: in a single line if an extra is missing, or after Ctrl-C. Python then exits."""
    if issubclass(kind, KeyboardInterrupt):
        print(f"{prog(Path(sys.argv[0]).stem)}: interrupted", file=sys.stderr)
    elif issubclass(kind, ModuleNotFoundError) and (remedy := what_to_install(error.name or "")):
        print(f"{prog(Path(sys.argv[0]).stem)}: error: {remedy}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


_installed = bool(sys.argv) and Path(sys.argv[0]).name == prog("")
if _installed:
    sys.path.insert(0, os.getcwd())  # as `python -m` does: finds rules in the current folder
if _installed or sys.argv[:1] == ["-m"]:  # sys.argv is ["-m"] while Python looks for the module to run
    sys.excepthook = _without_the_extra
