"""How a command ends, and what it prints before."""

import importlib
import os
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from openrlhf_shear import cli
from openrlhf_shear.line import frame
from openrlhf_shear.line.run import INSTALL
from openrlhf_shear.rewards.jail import JailError

ROOT = Path(__file__).parents[3]
PROG = "python -m openrlhf_shear.cli.test_frame"


def run(error: BaseException | None, refused=(), interrupted="interrupted") -> None:
    @frame.command(lambda parser: None, "What it does.", "  {prog} x", "{prog} [flags]", refused, interrupted)
    def main(args):
        if error is not None:
            raise error

    main([])


@pytest.mark.parametrize("error", [ValueError("no"), FileNotFoundError("no"), UnicodeError("no")])
def test_what_cannot_be_used_ends_with_2_and_a_line(error, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(error)
    assert stopped.value.code == 2 and capsys.readouterr().err == f"{PROG}: error: no\n"


@pytest.mark.parametrize("error", [frame.Shortfall("no"), JailError("no")])
def test_what_the_machine_lacks_ends_with_1_and_a_line(error):
    with pytest.raises(SystemExit, match=f"^{PROG}: error: no$"):
        run(error, refused=(RuntimeError,))  # which a JailError is, too


def test_an_interrupt_ends_with_130_and_a_hint(capsys):
    with pytest.raises(SystemExit) as stopped:
        run(KeyboardInterrupt(), interrupted="interrupted; go on")
    assert stopped.value.code == 130 and capsys.readouterr().err.endswith("cli.test_frame: interrupted; go on\n")


def test_a_mistake_in_the_program_keeps_its_traceback_unless_a_command_says_otherwise(capsys):
    with pytest.raises(RuntimeError, match="a bug"):
        run(RuntimeError("a bug"))
    with pytest.raises(SystemExit):
        run(RuntimeError("a bug"), refused=(RuntimeError,))
    assert "error: a bug" in capsys.readouterr().err


def test_progress_is_quiet_without_a_terminal(capsys, monkeypatch):
    assert list(frame.progress([1, 2], "counting")) == [1, 2]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(frame.progress([1, 2], "counting")) == [1, 2] and "counting" in capsys.readouterr().err


COMMANDS = [file.stem for file in Path(cli.__file__).parent.glob("*.py") if "\n    main()\n" in file.read_text()]


def test_ten_commands_are_installed_and_the_others_are_modules():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert {place.removeprefix("openrlhf_shear.cli.") for place in scripts.values()} < {f"{n}:main" for n in COMMANDS}
    assert all(name.startswith("shear-") for name in scripts) and len(scripts) == 10


@pytest.mark.parametrize("command", COMMANDS)
def test_no_two_flags_of_a_command_have_one_help(command):
    main = importlib.import_module(f"openrlhf_shear.cli.{command}").main
    helps = [action.help for action in main.parser()._actions] if hasattr(main, "parser") else []
    texts = sorted(text for text in helps if text and not text.startswith("(default"))
    assert callable(main) and not [text for text, longer in pairwise(texts) if longer.startswith(text)]


def test_an_installed_command_knows_its_name_and_imports_from_where_it_is_called(tmp_path):
    script, here = tmp_path / "bin" / "shear-lab", tmp_path / "here"
    for folder in (script.parent, here):
        folder.mkdir()
    script.write_text("import sys\nfrom openrlhf_shear.cli.lab import main\nsys.exit(main())\n")
    (here / "my_rule.py").write_text("raise RuntimeError('it is imported')\n")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    line = [sys.executable, script, "--rules", "my_rule:Mine", "--output", "out", "--seeds", "0"]
    done = subprocess.run(line, env=env, cwd=here, capture_output=True, text=True)
    assert done.returncode == 2 and "it is imported" in done.stderr and "shear-lab: error: " in done.stderr


def test_an_installed_command_without_the_extra_says_so_in_a_line(tmp_path):
    """`tests/unit/house/test_light_core.py` has the same of `python -m`."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules |= dict.fromkeys(['openrlhf', 'tqdm'])")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    script = tmp_path / "shear-it"
    script.write_text("import sys\nfrom openrlhf_shear.cli.evaluate import main\nsys.exit(main())\n")
    done = subprocess.run([sys.executable, script, "--help"], env=env, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.splitlines() == [
        f"shear-it: error: needs the extra [cluster]: tqdm is not installed; {INSTALL}"
    ]
