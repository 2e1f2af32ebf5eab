"""The page of results and the README's chart are what `benchmarks/results_page.py` makes of the files of results."""

import io
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="needs the extra [tools]")
import numpy as np
from matplotlib.image import imread
from results_page import CHART, PAGE, RESULTS, bookkeeping_gains, chart, lab_gains, page

from openrlhf_shear.report.figures import render

ROOT = Path(__file__).parents[3]
ROWS = tomllib.loads((ROOT / "benchmarks/results_rows.toml").read_text())


def test_the_page_has_the_tables_of_today():
    assert PAGE.read_text() == page(PAGE.read_text()), "PYTHONPATH=. python benchmarks/results_page.py"


def test_every_file_of_results_has_a_row():
    files = [row["file"] for rows in ROWS.values() for row in rows]
    assert sorted(files) == sorted(path.name for path in RESULTS.glob("*.json"))


def test_every_commit_and_script_of_the_page_is_one():
    text = PAGE.read_text()
    for script in re.findall(r"(?:examples/scripts|benchmarks)/\w+\.(?:sh|py)", text):
        assert (ROOT / script).is_file(), script
    commits = {
        commit for cells in re.findall(r"^\| \[.*", text, re.M) for commit in re.findall(r"\b[0-9a-f]{7}\b", cells)
    }
    assert len(commits) > 20
    if (ROOT / ".git").exists() and not (ROOT / ".git/shallow").exists():
        git = ["git", "-C", ROOT, "rev-list", "HEAD"]  # a commit of a branch that is gone is in no clone
        history = subprocess.run(git, capture_output=True, text=True, check=True).stdout.splitlines()
        assert not commits - {commit[:7] for commit in history}


def test_the_kept_chart_is_drawn_from_the_kept_numbers():
    """A point that is off by a tenth of a percentage point moves more pixels than these."""
    kept, drawn = imread(CHART), imread(io.BytesIO(render(chart(), "png")))
    assert kept.shape == drawn.shape and (np.abs(kept - drawn).max(axis=-1) > 0.1).sum() < 20


def test_the_readme_has_these_numbers():
    readme = (ROOT / "README.md").read_text()
    lab, books, large = lab_gains(), bookkeeping_gains("over uniform", "primary"), bookkeeping_gains("5.1M")
    for gain in (lab["shear"], lab["error_odds"], books["shear"], books["error_odds"], large["shear"]):
        values = [f"{round(100 * value, 1) + 0.0:+.1f}" for value in gain.shown]
        assert f"{values[0].replace('+0.0', '0.0')} ({values[1]} to {values[2]})" in readme
