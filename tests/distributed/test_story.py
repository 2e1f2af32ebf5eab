"""A run's messages reach the screen without Ray's log monitor, and while its GCS stands still."""

import sys
from pathlib import Path

RELAYED = Path(__file__).with_name("relayed.py")


def test_the_story_does_not_depend_on_rays_log(jobs):
    done = jobs.run(sys.executable, RELAYED, "log_monitor.py=SIGKILL", "gcs_server=SIGSTOP")
    assert done.code == 0
    for step in range(1, 5):
        said = [line for line in done.log.splitlines() if f"{step}/4" in line or f"step {step}" in line]
        assert len(said) == 3, "its line, what it does, and the log's, once each"
