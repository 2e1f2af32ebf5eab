"""Helpers of tests of commands."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_shear.cli.train_ppo_ray import main as train
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR
from openrlhf_shear.train.checkpoints import folders

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "ray", "vllm", "deepspeed", "transformers", "datasets")


def write_tokenizer(folder: Path) -> None:
    """Write the lab's tokenizer, with a chat template."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(POLICY_DIR / name, folder)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}<{{ m['content'] }}>{% endfor %}")


def write_checkpoint(folder: Path, tag: str) -> None:
    """Write a complete checkpoint, without a fingerprint."""
    file = folder / f"{tag}{folders.PARTIAL}" / "metric.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    folders.commit(folder, tag, folders.digests([file]))


def files_here() -> set[Path]:
    """Return what the working directory holds, without Python's compiled files."""
    return {path for path in Path().rglob("*") if "__pycache__" not in path.parts}


def refusal(capsys, line, main=train) -> str:
    """Return what a command prints when it refuses these words with exit code 2: a line, or a list."""
    capsys.readouterr()  # of fixtures
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in line])
    told = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2, told
    first = next(number for number, line in enumerate(told) if ": error: " in line)
    assert all(line.startswith(("[Info] ", "[Warning] ")) for line in told[:first]), told
    assert all(line.startswith("  ") for line in told[first + 1 :]), told
    return "\n".join(told[first:])


def run_fresh(module: str, words, watched=HEAVY, function: str = "main", options=(), **environment: str):
    """Run a command's function in a new interpreter; return the result and the `watched` modules that it loaded."""
    code = (
        f"import sys\nfrom openrlhf_shear.cli.{module} import {function}\n"
        f"try:\n    {function}(sys.argv[1:])\n"
        f"finally:\n    print('loaded:', *[name for name in {watched} if name in sys.modules])\n"
    )
    line = [sys.executable, *options, "-c", code, *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    run = subprocess.run(line, capture_output=True, text=True, env=environment)
    return run, run.stdout.splitlines()[-1].split()[1:]
