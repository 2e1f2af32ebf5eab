"""Checks of a GPU that need none: limits, trials of launches, and what the script refuses."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from openrlhf_shear.transport import SinkhornPairs
from openrlhf_shear.transport.tiles import tiles

gpu_check = pytest.importorskip("gpu_check", exc_type=ImportError)
from openrlhf_shear.kernels.triton_sinkhorn import LAUNCH, launch  # noqa: E402

SCRIPT = Path(__file__).parents[3] / "scripts" / "gpu_check.sh"
CPU = torch.device("cpu")


def test_groups_at_once_are_compared_with_each_group(monkeypatch):
    """On the CPU, where nothing is shared: the weights are equal, and no time is saved."""
    monkeypatch.setattr(
        gpu_check, "best_times", lambda jobs, *_, **__: ({n: len(job()) for n, job in jobs.items()}, {})
    )
    right, fast = gpu_check.together(torch.device("cpu"), groups=3, tokens=120, hidden=16)
    assert right["measured"] == 0.0 and right["holds"] and fast["measured"] == 1.0 and fast["holds"]


def test_the_oracle_is_the_value_of_the_reference_solver():
    a, b = gpu_check.sides(CPU, 7, 5)
    tile = next(tiles(a, b, 2**28))
    values = SinkhornPairs(tile, gpu_check.EPSILON).solve(tile.all_pairs(), tolerance=1e-5).value.double()
    costs = gpu_check.costs_of(a, b, tile.all_pairs())
    assert ((gpu_check.sinkhorn(costs) - values).abs() < 1e-3 * gpu_check.EPSILON).all()


def test_the_default_launch_is_compared_with_the_fastest_that_works(monkeypatch):
    def timed(*_):
        if LAUNCH["maxnreg"] is None:
            raise RuntimeError("out of resources")
        return (LAUNCH == {"rows_a_warp": 32, "maxnreg": 255} and 3.0) or LAUNCH["rows_a_warp"] / 8

    monkeypatch.setattr(gpu_check, "problem", lambda device, window, spans: (None, None))
    monkeypatch.setattr(gpu_check, "seconds_of", timed)
    row = gpu_check.launches(CPU, 100)
    assert (row["measured"], row["holds"]) == (3.0, False) and "8 rows a warp and maxnreg 128" in row["what"]
    assert LAUNCH == {"rows_a_warp": 32, "maxnreg": 255}


def test_a_launch_follows_the_rows_of_a_block():
    assert launch(64) == {"num_warps": 2, "maxnreg": 255, "enable_fp_fusion": True}
    assert launch(128)["num_warps"] == 4 and launch(16)["num_warps"] == 1


@pytest.mark.parametrize("missing", ["g++", "Python.h"])
def test_the_script_refuses_a_machine_without(missing, tmp_path):
    """Its PATH has neither pip nor apt-get, so nothing is installed."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "basename", "id"):
        (programs / name).symlink_to(shutil.which(name))
    has_headers = "exit 1" if missing == "Python.h" else "exit 0"
    _program(programs / "python3", f'if [ "$1" = -c ]; then {has_headers}; fi; echo installing >&2')
    if missing != "g++":
        _program(programs / "g++", "exit 0")
    run = subprocess.run([SCRIPT, tmp_path / "env"], env={"PATH": str(programs)}, capture_output=True, text=True)
    assert run.returncode == 1 and "g++ or Python.h" in run.stderr and "installing" not in run.stderr
    assert "apt-get install g++ python3-dev" in run.stdout


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!{shutil.which('bash')}\n{text}\n")
    os.chmod(path, 0o755)
