"""The search of a long group stays within its memory: measured on a process of its own."""

import json
import subprocess
import sys
from pathlib import Path


def test_a_group_of_8_rollouts_of_1500_tokens_of_a_7b_model_fits_into_half_a_gib():
    """G = 8, T = 1500, d = 3584 (bf16), shear.max_cost_bytes at its default of 1 GiB; 0.17 GiB was measured.

    Costs of all pairs of tokens are a quarter of those of T = 3000, which stay below 2 GiB (0.3 GiB was measured).
    """
    probe = Path(__file__).with_name("memory_probe.py")
    done = subprocess.run([sys.executable, probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["opposed"] and measured["converged"]
    assert measured["extra_bytes"] < 2**29
