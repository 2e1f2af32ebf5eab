"""What evaluations and diagnoses show while engines work, and what only their log has; counts of advantages."""

import subprocess
import sys

import pytest
from cases import cases
from command_lines import ROOT

from openrlhf_shear.train.run.books import Advantages

TALK = """
import os, subprocess, sys
from pathlib import Path
from openrlhf_shear.train.screen.console import quiet
print("before")
with quiet(Path("logs/evaluate.log"), {verbose}):
    print("an engine's talk")
    subprocess.run(["echo", "a child's talk"])
    print("WARNING 11-22 22:33:17 strategy.py:96] no room", file=sys.stderr)
    print("completions:  50%|#####     | 3/6 [00:01<00:01]", file=sys.stderr)
    {fault}
print("the table")
"""


def shown(folder, verbose=False, fault=""):
    command = [sys.executable, "-c", TALK.format(verbose=verbose, fault=fault)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_the_screen_has_problems_progress_and_results(tmp_path):
    out, errors = shown(tmp_path)
    talked = ["warning: no room", "completions ...", "log       logs/evaluate.log"]
    assert out == ["before", *talked, "the table"] and errors == []
    kept = (tmp_path / "logs" / "evaluate.log").read_text()
    assert "an engine's talk" in kept and "a child's talk" in kept and "50%" not in kept


def test_verbose_shows_it_all(tmp_path):
    out, errors = shown(tmp_path, verbose=True)
    assert out[-1] == "the table" and "an engine's talk" in out and len(errors) == 2
    assert not (tmp_path / "logs").exists()


def test_an_error_is_shown_on_the_screen(tmp_path):
    out, errors = shown(tmp_path, fault="raise ValueError('the model is broken')")
    assert out[-1] == "log       logs/evaluate.log" and errors[-1] == "ValueError: the model is broken"


@pytest.mark.parametrize(*cases("train", "test_steps_that_teach_nothing_are_told"))
def test_steps_that_teach_nothing_are_told(steps, said, end):
    counter = Advantages(2)
    told = [counter.note(rewards) for rewards in steps]
    assert told[-1].startswith(said) if said else not any(told)
    assert counter.shown(counter.counts).startswith(end)
