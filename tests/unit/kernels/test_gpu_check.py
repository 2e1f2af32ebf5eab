"""Checks of a GPU that need none: limits, trials of launches, and what the script refuses."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from openrlhf_shear.kernels import tuning
from openrlhf_shear.transport import SinkhornPairs
from openrlhf_shear.transport.tiles import tiles

gpu_check = pytest.importorskip("gpu_check", exc_type=ImportError)
from openrlhf_shear.kernels.triton_sinkhorn import launch  # noqa: E402

SCRIPT = Path(__file__).parents[3] / "scripts" / "gpu_check.sh"
CPU = torch.device("cpu")


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Return the file of sm_90's launch, as an earlier check left it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tuning.forget()
    monkeypatch.setattr(tuning, "architecture", lambda device: "sm_90")
    monkeypatch.setattr(gpu_check, "problem", lambda device, window, spans: (None, None))
    yield tuning.keep("sm_90", {128: {"rows_a_warp": 16, "maxnreg": 168}})
    tuning.forget()


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


@pytest.mark.parametrize("window, wanted, arithmetic, shared", [(100, 0.12, 0.03, 0.06), (50, 0.03, 0.0075, 0.015)])
def test_limits_are_those_of_the_problem_s_size(window, wanted, arithmetic, shared, monkeypatch):
    monkeypatch.setattr(gpu_check, "problem", lambda device, window, spans: (None, range(1000)))
    for seconds, holds in ((wanted * 0.99e-3, True), (wanted * 1.01e-3, False)):
        monkeypatch.setattr(gpu_check, "seconds_of", lambda *of, seconds=seconds: seconds)
        row = gpu_check.fast(CPU, window)
        assert row["wanted"] == f"<= {wanted} (limits: {arithmetic} arithmetic, {shared} shared memory)"
        assert row["holds"] is holds and row["measured"] == pytest.approx(seconds * 1000)


def test_an_interrupted_tuning_leaves_the_old_launch(kept, monkeypatch):
    before, used = kept.read_text(), []

    def interrupted(tile, pairs, device):
        used.append(tuning.options("sm_90", 128))
        if len(used) == 15:  # of 24
            raise KeyboardInterrupt
        return 1.0

    monkeypatch.setattr(gpu_check, "seconds_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gpu_check.tuned(CPU)
    assert kept.read_text() == before and [*kept.parent.iterdir()] == [kept]
    assert used[0] == {"rows_a_warp": 8, "maxnreg": None} and used[13] == {"rows_a_warp": 8, "maxnreg": 128}
    assert tuning.options("sm_90", 128) == json.loads(before)["128"]


def test_the_fastest_launch_that_works_is_chosen(kept, monkeypatch):
    times = iter([3.0, RuntimeError("out of resources"), 1.0, *[2.0] * 9, *[5.0] * 11, 4.0])

    def timed(*of):
        seconds = next(times)
        if isinstance(seconds, Exception):
            raise seconds
        return seconds

    monkeypatch.setattr(gpu_check, "seconds_of", timed)
    assert gpu_check.tuned(CPU) == {
        64: {"rows_a_warp": 8, "maxnreg": 168, "seconds": 1.0},
        128: {"rows_a_warp": 32, "maxnreg": 255, "seconds": 4.0},
    }


def test_nothing_is_chosen_where_no_launch_works(kept, monkeypatch):
    monkeypatch.setattr(gpu_check, "seconds_of", lambda *of: 1 / 0)
    with pytest.raises(SystemExit, match="no launch works for spans of 50"):
        gpu_check.tuned(CPU)


def test_a_trial_is_what_a_solve_is_launched_with():
    with tuning.trial({"rows_a_warp": 8, "maxnreg": 168}):
        assert launch(64) == {"num_warps": 8, "maxnreg": 168, "enable_fp_fusion": True}
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
