"""A worker of Ray whose output goes to a full disk works on, and says what is lost."""

import subprocess
import sys

import pytest

from openrlhf_shear.train.nodes import worker

FULL = """
import sys
from openrlhf_shear.train.nodes import worker
if sys.argv[1] == "lossy":
    worker.allow_lost_output()
print("lost", flush=True)
sys.stderr.write("lost too")
sys.stderr.flush()
with open(sys.argv[2], "w") as file:
    print(worker.lost_output(), worker.lost_output() == "", file=file)
"""


@pytest.mark.parametrize("how", ["lossy", "as Python does"])
def test_a_full_disk_behind_stdout_ends_no_worker(tmp_path, monkeypatch, how):
    monkeypatch.setenv("RAY_TMPDIR", "/small")
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", FULL, how, tmp_path / "said"], stdout=full, stderr=full)
    assert (tmp_path / "said").exists() == (how == "lossy"), done.returncode
    if how == "lossy":
        told = "the disk of Ray's temporary folder is full (RAY_TMPDIR, /small): its processes' output is lost"
        assert (tmp_path / "said").read_text() == f"{told}; make room there True\n"


def test_a_reader_that_left_is_an_error_as_before(tmp_path):
    file = (tmp_path / "closed").open("w")
    file.close()
    with pytest.raises(ValueError, match="closed file"):
        worker.Lossy(file).write("text")
