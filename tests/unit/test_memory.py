"""The search of a long group stays within its memory: measured on a process of its own."""

import json
import subprocess
import sys
from pathlib import Path


def test_a_group_of_8_rollouts_of_3000_tokens_of_a_7b_model_fits_into_2_gib():
    """G = 8, T = 3000, d = 3584 (bf16), shear.max_cost_bytes at its default of 1 GiB; 0.3 GiB was measured."""
    probe = Path(__file__).with_name("memory_probe.py")
    done = subprocess.run([sys.executable, probe], capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["opposed"] and found["converged"]
    assert found["extra_bytes"] < 2 * 2**30
