"""Choice of the span search's backend: made once, and logged with the reason.

torch   the reference, on any device: batches of blocks
numba   CPU: compiled loops, one block at a time in the cache
triton  CUDA: one program a block, on chip
"""

import contextlib
import importlib
import logging
import re
import threading
from functools import cache

from openrlhf_shear.config.spec import BACKENDS
from openrlhf_shear.transport.sinkhorn_pairs import SinkhornPairs

logger = logging.getLogger(__name__)

_PREFERRED = {"cpu": "numba", "cuda": "triton"}
_FAST_TRITON = (3, 7)  # earlier ones lay blocks out otherwise, and spill registers in every iteration


@cache
def choose_backend(backend: str, device: str, window: int) -> type[SinkhornPairs]:
    """Return the solver of a search's entropic problems; log the choice and its reason once in a process.

    Args:
        backend: `SearchConfig.backend`: "auto", or a backend to force.
        device: type of the device of the hidden states: "cpu" or "cuda".
        window: span length, in tokens.

    Raises ValueError: the backend is unknown, or a forced backend cannot run this search here.
    """
    if backend not in BACKENDS:
        raise ValueError(f"credit.backend {backend!r} is not known; use one of {', '.join(BACKENDS)}")
    name = _PREFERRED.get(device, "torch") if backend == "auto" else backend
    chosen, problem = _load(name, device, window)
    if problem and backend != "auto":
        raise ValueError(f"credit.backend {backend} cannot be used: {problem}; use auto")
    if problem:
        logger.warning("span search backend: torch, which is slower (%s cannot be used: %s)", name, problem)
        return SinkhornPairs
    if name == "triton":
        warn_of_a_slow_triton()
    logger.info("span search backend: %s (%s)", name, "asked for" if backend != "auto" else f"the fastest on {device}")
    return chosen


def compile_ahead(backend: str, device: str) -> None:
    """Compile the loops of a CPU's search in a thread, while a caller loads models: else a first step waits for it."""
    if device == "cpu" and backend in ("auto", "numba"):
        threading.Thread(target=_compile_loops, name="compile", daemon=True).start()


def _compile_loops() -> None:
    with contextlib.suppress(Exception):  # `choose_backend` tells a search what is missing
        importlib.import_module("openrlhf_shear.kernels.numba_sinkhorn").compile_loops()


@cache
def warn_of_a_slow_triton() -> None:
    """Warn, once in a process, of a Triton whose solves spill registers in every iteration."""
    found = importlib.import_module("triton").__version__
    if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < _FAST_TRITON:
        logger.warning(
            "span search backend: triton %s is slow: its solves spill registers in every iteration. Use torch 2.12 or "
            "later, which brings triton 3.7 or later",
            found,
        )


def check_device(backend: str, device: str) -> None:
    """Refuse a forced backend that cannot run on `device` (ValueError), without importing it."""
    problem = _wrong_device(backend, device)
    if problem:
        raise ValueError(f"credit.backend {backend} cannot be used: {problem}; use auto")


def _wrong_device(name: str, device: str) -> str | None:
    needed = [where for where, backend in _PREFERRED.items() if backend == name]
    return f"it needs hidden states on {needed[0]}, they are on {device}" if needed and device not in needed else None


def _load(name: str, device: str, window: int) -> tuple[type[SinkhornPairs], str | None]:
    """Return the backend's class, and the problem that rules it out, if any."""
    if name == "torch":
        return SinkhornPairs, None
    if problem := _wrong_device(name, device):
        return SinkhornPairs, problem
    try:
        module = importlib.import_module(f"openrlhf_shear.kernels.{name}_sinkhorn")
    except Exception as error:  # a package is missing, or does not fit this machine
        return SinkhornPairs, f"{type(error).__name__}: {error}"
    chosen = getattr(module, f"{name.capitalize()}Sinkhorn")
    if window > chosen.MAX_WINDOW:
        most = chosen.MAX_WINDOW
        return SinkhornPairs, f"spans of more than {most} tokens do not fit on the chip (shear.window {window})"
    return chosen, None
