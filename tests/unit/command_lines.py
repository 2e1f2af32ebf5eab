"""What tests of command lines share."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_shear.cli.train_ppo_ray import parse

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "ray", "vllm", "deepspeed", "transformers", "datasets")


def refusal(capsys, line: list[str]) -> str:
    """The last line of what is said of a training command's line that is refused, with exit code 2."""
    with pytest.raises(SystemExit) as stopped:
        parse(line)
    assert stopped.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def check_refused(capsys, line: list[str], parts: list[str]) -> None:
    told = refusal(capsys, line)
    assert all(part in told for part in parts), told


def table(text: str) -> list[tuple[str, list[str]]]:
    """Pairs of lines: flags, and below them parts of what is said of them; lines with # are headings."""
    lines = [line for line in text.strip().splitlines() if not line.startswith("#")]
    return [(flags, said.strip().split(" | ")) for flags, said in zip(lines[::2], lines[1::2], strict=True)]


def run_fresh(module: str, words, watched=HEAVY, function: str = "main", options=(), **environment: str):
    """A function of a command in a process of its own; and which of the `watched` modules it has loaded in the end."""
    code = (
        f"import sys\nfrom openrlhf_shear.cli.{module} import {function}\n"
        f"try:\n    {function}(sys.argv[1:])\n"
        f"finally:\n    print('loaded:', *[name for name in {watched} if name in sys.modules])\n"
    )
    line = [sys.executable, *options, "-c", code, *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    run = subprocess.run(line, capture_output=True, text=True, env=environment)
    return run, run.stdout.splitlines()[-1].split()[1:]
