"""The rooms of plain PyTorch load without Ray, vLLM, DeepSpeed or OpenRLHF; the knobs without torch."""

import importlib.util
import subprocess
import sys

import pytest

HEAVY = ("ray", "vllm", "deepspeed", "openrlhf")


def loaded_after(module: str, names: tuple[str, ...]) -> str:
    """Which of the top-level modules `names` a fresh interpreter has loaded after importing `module`."""
    code = f"import sys, {module}; print(','.join(n for n in {names!r} if n in sys.modules))"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    "room",
    [
        *("ot", "credit", "config", "rewards", "diagnosis.run", "diagnosis.findings"),
        *("lab.findings", "lab.runs", "lab.trainer"),
    ],
)
def test_a_room_loads_without_the_training_stack(room):
    module = f"openrlhf_shear.{room}"
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not there yet")
    assert loaded_after(module, HEAVY) == ""


@pytest.mark.parametrize("room", ["ot", "credit"])
def test_pot_is_imported_only_when_it_is_used(room):
    assert loaded_after(f"openrlhf_shear.{room}", ("ot",)) == ""


def test_the_knobs_load_without_torch():
    assert loaded_after("openrlhf_shear.config", ("torch", "numpy")) == ""
