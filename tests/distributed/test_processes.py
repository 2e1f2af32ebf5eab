"""Commands of tests leave no process behind, whichever process ends first; a failure shows their logs."""

import subprocess
import sys
from pathlib import Path

from .processes import KEEPER, wait_until

ESCAPES = "setsid sleep infinity & echo $!"


def runs(process: str) -> bool:
    return Path("/proc", process).exists()


def test_what_a_command_leaves_in_a_session_of_its_own_is_ended(jobs):
    done = jobs.run("bash", "-c", f"{ESCAPES}; exit 3")
    assert done.code == 3 and not runs(done.log.strip())
    ((title, tail),) = jobs.tails()
    assert "exit code 3" in title and tail == done.log


def test_a_command_ends_when_its_starter_is_killed():
    code = f"import subprocess; subprocess.run([{sys.executable!r}, {str(KEEPER)!r}, 'bash', '-c', '{ESCAPES}; wait'])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as starter:
        escaped = starter.stdout.readline().strip()
        assert runs(escaped)
        starter.kill()
    wait_until(lambda: not runs(escaped), "it ended", pause=0.05)
