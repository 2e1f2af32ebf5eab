"""The command line of training: its flags, files of flags, older spellings, keys and defaults of the placement."""

import sys
from pathlib import Path


def prog(module: str) -> str:
    """Return the name that a command was called by: `shear-...` of pyproject.toml, or its module."""
    script = Path(sys.argv[0]).name
    return script if script.startswith("shear-") else f"python -m openrlhf_shear.cli.{module}"
