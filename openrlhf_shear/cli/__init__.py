"""Thin entry points: parse, call, print. What they need beyond `pip install .` is the extra `cluster`."""

import sys
from importlib.util import find_spec
from pathlib import Path

from openrlhf_shear.preflight.refusal import INSTALL


def _without_the_extra(kind: type[BaseException], error: BaseException, trace) -> None:
    """Shows an uncaught exception; where it is for want of the extra, in one line. Python then ends with 1."""
    if issubclass(kind, ModuleNotFoundError) and find_spec("openrlhf") is None:
        prog = f"python -m openrlhf_shear.cli.{Path(sys.argv[0]).stem}"
        print(f"{prog}: error: needs the extra [cluster]: {error.name} is not installed; {INSTALL}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


if sys.argv[:1] == ["-m"]:  # as it is while Python looks for the module that it was asked to run
    sys.excepthook = _without_the_extra
