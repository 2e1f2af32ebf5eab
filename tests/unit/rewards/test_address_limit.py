"""A low `ulimit -v` is named by what fails of it."""

import os
import resource
import subprocess
import sys

import pytest
from command_lines import refusal

from openrlhf_shear.doctor import machine
from openrlhf_shear.rewards import limits

GRADED = r"""
import json
from openrlhf_shear.rewards.code import grade_code
tests = json.dumps({"inputs": ["1"], "outputs": ["2"]})
print(grade_code("```python\nprint(int(input()) + 1)\n```", tests).correct)
"""


@pytest.fixture
def limit(monkeypatch):
    def set_limit(size: int) -> None:
        monkeypatch.setattr(limits.resource, "getrlimit", lambda which: (size, resource.RLIM_INFINITY))

    return set_limit


@pytest.mark.usefixtures("needs_jail")
def test_a_jail_asks_for_no_more_than_a_hard_limit(tmp_path):
    """Which root may raise, so without that right."""
    (tmp_path / "graded.py").write_text(GRADED)
    words = ["setpriv", "--bounding-set=-sys_resource", "prlimit", f"--as={8 << 30}:{8 << 30}"]
    words = words if os.geteuid() == 0 else words[2:]
    command = [*words, sys.executable, tmp_path / "graded.py"]
    assert subprocess.run(command, capture_output=True, text=True, timeout=100).stdout == "True\n"


@pytest.mark.parametrize(("gib", "status"), [(4, "fail"), (64, "warn")])
def test_the_doctor_names_it(limit, gib, status):
    limit(gib << 30)
    result = machine.addresses()
    assert (result.status, result.seen) == (status, f"ulimit -v is {gib << 20} ({gib}.0 GiB)")
    limit(resource.RLIM_INFINITY)
    assert machine.addresses().status == "ok"


def test_a_line_is_refused_by_its_name(limit, job, capsys, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    limit(4 << 30)
    assert "ulimit -v must leave a process 12 GiB" in refusal(capsys, job())
    assert "got 4194304 KiB; use ulimit -v unlimited" in refusal(capsys, job())
