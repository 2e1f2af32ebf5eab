"""Names of version 0.1 lead to the very modules of today, with a warning; also for `python -m` and in pickles."""

import importlib
import pickle
import pickletools
import subprocess
import sys
from importlib.util import find_spec

import pytest

from openrlhf_shear import moved


@pytest.mark.parametrize("old", sorted(moved.MOVED))
def test_every_old_name_leads_to_a_module(old):
    name = f"openrlhf_shear.{old}"
    new = moved.new_name(name)
    assert find_spec(new) is not None and moved.new_name(new) is None
    assert find_spec(name).origin == find_spec(new).origin


def test_an_old_name_is_the_module_of_today_and_warns():
    from openrlhf_shear.transport import geometry

    with pytest.warns(
        FutureWarning, match=r"openrlhf_shear.ot.geometry has moved to openrlhf_shear.transport.geometry"
    ):
        old = importlib.import_module("openrlhf_shear.ot.geometry")
    assert old is geometry and old.__spec__.name == "openrlhf_shear.transport.geometry"


def test_a_pickle_of_an_older_version_loads():
    """Checkpoints and queued rollouts are pickles."""
    from openrlhf_shear.transport.geometry import Spans

    saved = pickle.dumps(Spans, protocol=0).replace(b"openrlhf_shear.transport", b"openrlhf_shear.ot")
    assert "openrlhf_shear.ot.geometry Spans" in [argument for _, argument, _ in pickletools.genops(saved)]
    assert pickle.loads(saved) is Spans


def test_python_m_runs_an_old_command():
    command = [sys.executable, "-m", "openrlhf_shear.cli.warm_up_ledger", "--help"]
    assert "--decay-steps" in subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_module_that_never_was_is_no_module():
    with pytest.raises(ModuleNotFoundError, match="nothing"):
        importlib.import_module("openrlhf_shear.fork.nothing")
