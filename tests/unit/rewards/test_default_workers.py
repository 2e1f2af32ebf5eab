"""Graders without given workers share default ones: started when needed, renewed in a fork, ended with the process."""

import subprocess
import sys
from pathlib import Path

import pytest
from processes import stats, wait_until

pytestmark = pytest.mark.usefixtures("needs_jail")

GRADES = {
    "maths.workers": r'grade_math(r"\boxed{x\cdot 2}", "2x").method == "math_verify"',
    "code.hosts": 'grade_code("print(3)", {"inputs": [""], "outputs": ["3"]}, extract=False).correct',
}
PROGRAM = r"""
import os, sys
sys.path.insert(0, sys.argv[2])
from processes import children
from openrlhf_shear.rewards import grade_code, grade_math
from openrlhf_shear.rewards.KIND import default_workers

def graded():
    return GRADE

grade_math(r"\boxed{1}", "1"), grade_code("", {"inputs": [""], "outputs": ["3"]})
assert not children(), "neither grade needs a worker"
assert graded() and len(children()) == 1
workers, child = children(), os.fork()
if child == 0:
    sys.exit(bool(children()) or not graded() or len(children()) != 1)
assert os.waitpid(child, 0)[1] == 0 and graded() and children() == workers, "the end of the fork ends its own"
print(*workers)
if sys.argv[1] == "close":
    default_workers.close()
    assert not children() and graded() and len(children()) == 1
"""


@pytest.mark.parametrize("kind", GRADES)
def test_default_workers_are_lazy_renewed_in_a_fork_and_end_with_their_process(kind):
    program = PROGRAM.replace("KIND", kind).replace("GRADE", GRADES[kind])
    pids: set[int] = set()
    for word in ("close", "leave"):
        command = [sys.executable, "-c", program, word, str(Path(__file__).parents[1])]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        pids |= {*map(int, done.stdout.split())}
    assert len(pids) == 2 and wait_until(lambda: not pids & stats().keys())
