"""On its way from argv to the verdict a command passes through few files, as scripts/argv_stays.py counts."""

import json
import os
import subprocess
import sys

from command_lines import ROOT


def test_a_command_passes_through_few_files():
    line = [sys.executable, ROOT / "scripts" / "argv_stays.py"]
    done = subprocess.run(line, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout.splitlines()[0])
    assert counts["files"] <= 30 and counts["stays"] <= 120, counts["by_file"]
    readers = ("line/spelling.py", "preflight/models.py", "data/training_rows.py")
    assert all(counts["by_file"][reader] <= 3 for reader in readers), "flags, models and rows are read once"
