"""Unit tests start no Ray: the guard in conftest.py holds for a test, and for a process that it starts."""

import importlib.util
import subprocess
import sys

import pytest


def test_ray_does_not_start_here():
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed")
    code = "import ray; ray.init(address='local', include_dashboard=False, num_cpus=1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode != 0 and "unit-tests-start-no-ray" in done.stderr.splitlines()[-1]
