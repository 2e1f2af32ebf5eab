"""A folder without search permission gives a finding of the doctor or of training, never a traceback."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from openrlhf_shear.doctor import machine, toolkit
from openrlhf_shear.line.run import Run
from openrlhf_shear.preflight import resources

NOBODY = 65534


@pytest.fixture
def closed() -> Iterator[Path]:
    """A folder with another folder in it, which nobody may search."""
    with tempfile.TemporaryDirectory() as above:  # pytest's tmp_path is root's alone
        Path(above).chmod(0o755)
        folder = Path(above, "closed")
        (folder / "inside").mkdir(parents=True)
        folder.chmod(0)
        yield folder
        folder.chmod(0o700)


@contextlib.contextmanager
def without_root() -> Iterator[None]:
    """Let permissions bind: root becomes another user."""
    if os.geteuid() != 0:
        yield
        return
    try:
        os.setresuid(NOBODY, NOBODY, 0)
    except OSError:
        pytest.skip("root cannot become another user here")
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.mark.parametrize("below", [".", "inside", "inside/run"])
def test_training_names_the_folder_that_cannot_be_searched(closed, below):
    values = {"ckpt.path": f"{closed / below}/ckpt", "ckpt.output_dir": "/tmp", "logger.tensorboard_dir": None}
    with without_root():
        found = [*map(str, resources.folders(Run(values)))]
    assert found and all(f"ckpt.path cannot be written to: {closed} is not a folder, or" in each for each in found)


def test_the_doctor_reports_a_path_a_cache_and_locks_that_it_cannot_see(closed, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(closed / "inside" / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with without_root():
        disk, hub = machine.disk(closed / "inside"), machine.hub()
        locks = toolkit.locks({"TORCH_EXTENSIONS_DIR": str(closed / "inside")})
    assert (disk.status, disk.seen) == ("fail", f"{closed} cannot be written to")
    assert hub.status == "ok" and "0 models and data sets in" in hub.seen
    assert (locks.status, locks.seen) == ("ok", "none")
