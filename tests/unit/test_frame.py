"""How a command ends, and what it prints on the way."""

import sys

import pytest

from openrlhf_shear.cli import frame
from openrlhf_shear.rewards.jail import JailError


def run(error: BaseException | None, **options) -> None:
    def work(args):
        if error is not None:
            raise error

    parser = frame.new_parser("any", "What it does.", "  {prog} x", usage="{prog} [flags]")
    frame.command(lambda: parser, work, **options)([])


def test_a_command_that_works_ends_quietly(capsys):
    run(None)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("error", [ValueError("no"), FileNotFoundError("no"), UnicodeError("no")])
def test_what_cannot_be_used_ends_with_2_and_a_line(error, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(error)
    usage, told = capsys.readouterr().err.splitlines()
    prog = "python -m openrlhf_shear.cli.any"
    assert stopped.value.code == 2 and usage == f"usage: {prog} [flags]" and told == f"{prog}: error: no"


@pytest.mark.parametrize("error", [frame.Shortfall("no"), JailError("no")])
def test_what_the_machine_lacks_ends_with_1_and_a_line(error):
    with pytest.raises(SystemExit, match=r"^python -m openrlhf_shear\.cli\.any: error: no$"):
        run(error, refused=(RuntimeError,))  # which a JailError is, too


def test_an_interrupt_ends_with_130_and_what_becomes_of_the_work(capsys):
    with pytest.raises(SystemExit) as stopped:
        run(KeyboardInterrupt(), interrupted="interrupted; go on")
    assert stopped.value.code == 130 and capsys.readouterr().err.endswith("cli.any: interrupted; go on\n")


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
