"""Some rows of the fault bench, one fault each: no rollout lost or doubled, the same weights, no process left.

`make test-faults` and `make test-long` run them. `test_whole_run.py`, of every commit, kills an engine's core.
"""

import json
import sys

import pytest
from cases import table

from .processes import ROOT

BROKEN = table("distributed", "FAULTS")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A function: a row's name -> its outcome; the job without a fault is shared."""
    folder = tmp_path_factory.mktemp("faults")

    def run(jobs, name):
        words = ("--rows", name, "--trials", 1, "--prompts", 40, "--folder", folder)
        words += ("--output", folder / f"{name}.json")
        done = jobs.run(sys.executable, ROOT / "benchmarks" / "faults.py", *words)
        assert done.code == 0, done.log[-2000:]
        return json.loads((folder / f"{name}.json").read_text())["rows"][name]

    return run


@pytest.mark.faults
@pytest.mark.parametrize("name", BROKEN)
def test_a_run_survives_or_ends_as_it_should(jobs, rows, name):
    outcome = rows(jobs, name)
    if outcome["ends"].startswith("not tried"):
        pytest.skip(outcome["ends"])
    assert outcome["ends"].startswith(BROKEN[name]), outcome
    assert outcome["hangs"] == outcome["orphans"] == 0
    assert outcome["trials"] == 1 and not outcome["lost"] and not outcome["doubled"], outcome
    assert outcome["equal"] in (True, None), outcome
