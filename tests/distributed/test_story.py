"""A run's messages reach the screen while Ray's log monitor hangs."""

import sys
from pathlib import Path

import pytest

RELAYED = Path(__file__).with_name("relayed.py")


@pytest.mark.parametrize(("victim", "signal"), [("log_monitor.py", "SIGKILL"), ("gcs_server", "SIGSTOP")])
def test_the_story_does_not_depend_on_rays_log(jobs, victim, signal):
    done = jobs.run(sys.executable, RELAYED, victim, signal)
    assert done.code == 0
    for step in range(1, 5):
        said = [line for line in done.log.splitlines() if f"{step}/4" in line or f"step {step}" in line]
        assert len(said) == 3, "its line, what it does, and the log's, once each"
