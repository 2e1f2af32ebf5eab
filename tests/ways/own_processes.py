"""Processes of a test that start others: all of them end with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = float(os.environ.get("OPENRLHF_SHEAR_TEST_PATIENCE", "1"))
TWO = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")


def said_by(folder: Path, script: Path, *words: object, before: tuple[str, ...] = (), seconds: float = 250) -> str:
    """Run a script, which finds the modules of its folder, of here and of tests/unit; return what it said."""
    folders = [script.parent, ROOT, ROOT / "tests/ways", ROOT / "tests/unit"]
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    line = [sys.executable, *before, str(script), *map(str, words)]
    with (folder / "said").open("w") as said:
        started = subprocess.Popen(line, env=env, stdout=said, stderr=said, start_new_session=True)
        try:
            code = started.wait(timeout=seconds * PATIENCE)
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
    told = (folder / "said").read_text()
    assert code == 0, told[-3000:]
    return told
