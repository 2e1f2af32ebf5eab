"""The tuned launch is stored for each architecture; odd files are ignored."""

import json

import pytest
import torch

from openrlhf_shear.kernels import tuning
from openrlhf_shear.transport import SinkhornPairs
from openrlhf_shear.transport.tiles import tiles


@pytest.fixture(autouse=True)
def cache_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tuning.options.cache_clear()
    yield tmp_path
    tuning.options.cache_clear()


def test_what_was_kept_is_used_on_that_architecture_alone(cache_home):
    assert tuning.options("sm_90", 128) == tuning.DEFAULT
    path = tuning.keep("sm_90", {128: {"rows_a_warp": 32, "maxnreg": None, "seconds": 0.1}})
    assert path == cache_home / "openrlhf_shear" / "triton_sm_90.json" and len(list(path.parent.iterdir())) == 1
    assert tuning.options("sm_90", 128) == {"rows_a_warp": 32, "maxnreg": None}
    assert tuning.options("sm_80", 128) == tuning.DEFAULT


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"64": {}}', json.dumps({"64": {"rows_a_warp": 1000, "maxnreg": 128}})]
)
def test_another_file_is_ignored_with_one_warning(text, caplog):
    path = tuning.file_of("sm_90")
    path.parent.mkdir()
    path.write_text(text)
    assert tuning.options("sm_90", 64) == tuning.options("sm_90", 64) == tuning.DEFAULT
    assert len(caplog.records) == 1 and "gpu_check.py" in caplog.text


def test_the_gpu_check_s_oracle_is_the_value_of_the_reference_solver():
    gpu_check = pytest.importorskip("gpu_check", exc_type=ImportError)
    a, b = gpu_check.sides(torch.device("cpu"), 7, 5)
    tile = next(tiles(a, b, 2**28))
    values = SinkhornPairs(tile, gpu_check.EPSILON).solve(tile.all_pairs(), tolerance=1e-5).value.double()
    costs = gpu_check.costs_of(a, b, tile.all_pairs())
    assert ((gpu_check.sinkhorn(costs) - values).abs() < 1e-3 * gpu_check.EPSILON).all()
