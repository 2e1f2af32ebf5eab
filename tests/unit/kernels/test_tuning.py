"""The tuned launch is stored for each architecture; odd files are ignored."""

import json

import pytest

from openrlhf_shear.kernels import tuning


@pytest.fixture(autouse=True)
def cache_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tuning.forget()
    yield tmp_path
    tuning.forget()


def test_what_was_kept_is_used_on_that_architecture_alone(cache_home):
    assert tuning.options("sm_90", 128) == tuning.DEFAULT
    path = tuning.keep("sm_90", {128: {"rows_a_warp": 16, "maxnreg": None, "seconds": 0.1}})
    assert path == cache_home / "openrlhf_shear" / "triton_sm_90.json" and len(list(path.parent.iterdir())) == 1
    assert tuning.options("sm_90", 128) == {"rows_a_warp": 16, "maxnreg": None}
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
