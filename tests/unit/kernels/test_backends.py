"""The backend of the span search: chosen once, logged once, never silently another."""

import logging
import subprocess
import sys

import pytest
import torch
from cases import cases

from openrlhf_shear.config import SearchConfig, ShearConfig
from openrlhf_shear.credit import shear_weights
from openrlhf_shear.kernels.backends import choose_backend, warn_of_a_slow_triton
from openrlhf_shear.transport import SinkhornPairs

STATES = [torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])]


@pytest.fixture(autouse=True)
def fresh_choice():
    for cached in (choose_backend, warn_of_a_slow_triton):
        cached.cache_clear()
    yield
    for cached in (choose_backend, warn_of_a_slow_triton):
        cached.cache_clear()


def test_the_choice_is_logged_once_with_its_reason(caplog):
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            shear_weights(STATES, [True, False], search=SearchConfig(backend="auto"))
    assert [record.message for record in caplog.records] == ["span search backend: numba (the fastest on cpu)"]


def test_auto_falls_back_on_torch_and_says_why(caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "openrlhf_shear.kernels.numba_sinkhorn", None)  # as if numba were not there
    assert choose_backend("auto", "cpu", 100) is SinkhornPairs
    assert choose_backend("auto", "mps", 100) is SinkhornPairs
    assert choose_backend("auto", "cuda", 129) is SinkhornPairs
    slower = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "torch, which is slower (numba cannot be used: ModuleNotFoundError" in slower[0]
    assert "129" in slower[1] and len(slower) == 2


@pytest.mark.parametrize(
    "version, warns", [("3.6.0", True), ("3.5.1+git1a2b", True), ("2.3.1", True), ("3.7.0", False), ("3.10.0", False)]
)
def test_a_slow_triton_is_warned_of_once_with_what_to_do(version, warns, caplog, monkeypatch):
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton, "__version__", version)
    for window in (50, 100, 128):
        assert choose_backend("auto", "cuda", window).__name__ == "TritonSinkhorn"
    choose_backend("auto", "cuda", 129)  # torch instead
    slow = [record.message for record in caplog.records if f"triton {version} " in record.message]
    assert len(slow) == warns and all("Use torch 2.12 or later" in message for message in slow)


@pytest.mark.parametrize(*cases("kernels", "test_a_forced_backend_that_cannot_run_raises_with_the_reason"))
def test_a_forced_backend_that_cannot_run_raises_with_the_reason(asked, device, window, message):
    with pytest.raises(ValueError, match=message):
        choose_backend(asked, device, window)


def test_a_forced_backend_whose_package_is_missing_raises_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "openrlhf_shear.kernels.numba_sinkhorn", None)
    with pytest.raises(ValueError, match="numba cannot be used: ModuleNotFoundError"):
        choose_backend("numba", "cpu", 100)


def test_a_window_that_does_not_fit_is_refused_with_the_flags():
    with pytest.raises(ValueError, match=r"shear.window does not fit.*128"):
        shear_weights(STATES, [True, False], ShearConfig(window=129), SearchConfig(backend="triton"))
    SearchConfig(backend="triton").require_fits(128)


COMPILED = """
import threading, torch
from openrlhf_shear.credit import shear_weights
from openrlhf_shear.kernels import backends, numba_loops, numba_matrix

def compiled():
    loops = [loop for file in (numba_loops, numba_matrix) for loop in vars(file).values()]
    return {loop.__name__: len(loop.signatures) for loop in loops if getattr(loop, "signatures", None)}

backends.compile_ahead("auto", "cpu")
(thread,) = [thread for thread in threading.enumerate() if thread.name == "compile"]
thread.join()
ahead = compiled()
for dtype in (torch.float32, torch.bfloat16):
    states = torch.randn(6, 150, 24, generator=torch.Generator().manual_seed(0)).to(dtype)
    shear_weights(list(states), [True, False] * 3)
    shear_weights(list(1e4 * states), [True, False] * 3)
assert ahead and compiled() == ahead, (ahead, compiled())
"""


def test_a_search_compiles_nothing_that_was_not_compiled_ahead():
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
