"""How a command ends, and what it prints on the way."""

import doctest
import os
import subprocess
import sys

import pytest

from openrlhf_shear.cli import frame
from openrlhf_shear.config import names, near
from openrlhf_shear.preflight.refusal import INSTALL
from openrlhf_shear.rewards.jail import JailError

PROG = "python -m openrlhf_shear.cli.test_frame"


def run(error: BaseException | None, refused=(), interrupted="interrupted") -> None:
    @frame.command(lambda parser: None, "What it does.", "  {prog} x", "{prog} [flags]", refused, interrupted)
    def main(args):
        if error is not None:
            raise error

    main([])


def test_a_command_that_works_ends_quietly(capsys):
    run(None)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("error", [ValueError("no"), FileNotFoundError("no"), UnicodeError("no")])
def test_what_cannot_be_used_ends_with_2_and_a_line(error, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(error)
    assert stopped.value.code == 2 and capsys.readouterr().err == f"{PROG}: error: no\n"


@pytest.mark.parametrize("error", [frame.Shortfall("no"), JailError("no")])
def test_what_the_machine_lacks_ends_with_1_and_a_line(error):
    with pytest.raises(SystemExit, match=f"^{PROG}: error: no$"):
        run(error, refused=(RuntimeError,))  # which a JailError is, too


def test_an_interrupt_ends_with_130_and_what_becomes_of_the_work(capsys):
    with pytest.raises(SystemExit) as stopped:
        run(KeyboardInterrupt(), interrupted="interrupted; go on")
    assert stopped.value.code == 130 and capsys.readouterr().err.endswith("cli.test_frame: interrupted; go on\n")


def test_a_mistake_in_the_program_keeps_its_traceback_unless_a_command_says_otherwise(capsys):
    with pytest.raises(RuntimeError, match="a bug"):
        run(RuntimeError("a bug"))
    with pytest.raises(SystemExit):
        run(RuntimeError("a bug"), refused=(RuntimeError,))
    assert "error: a bug" in capsys.readouterr().err


def test_progress_is_quiet_where_nobody_looks(capsys, monkeypatch):
    assert list(frame.progress([1, 2], "counting")) == [1, 2]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(frame.progress([1, 2], "counting")) == [1, 2] and "counting" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "missing"),
    [("evaluate --help", "tqdm"), ("prepare_data --source math --output FOLDER/x.jsonl", "datasets")],
)
def test_a_command_without_the_extra_says_so_in_a_line(command, missing, tmp_path):
    """With `pip install .`; here what the extra brings is hidden."""
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules |= dict.fromkeys(['openrlhf', {missing!r}])")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    name, *words = command.replace("FOLDER", str(tmp_path)).split()
    done = subprocess.run(
        [sys.executable, "-m", f"openrlhf_shear.cli.{name}", *words], env=env, capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stderr.splitlines() == [
        f"python -m openrlhf_shear.cli.{name}: error: needs the extra [cluster]: {missing} is not installed; {INSTALL}"
    ]


@pytest.mark.parametrize("module", [near, names, frame])
def test_examples_in_docstrings(module):
    assert doctest.testmod(module).failed == 0 < doctest.testmod(module).attempted
