"""Launch options of the Triton kernels: defaults, or the best that `benchmarks/gpu_check.py` found for a GPU."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

logger = logging.getLogger(__name__)

# Chosen from the machine code of Triton 3.7.1 for sm_90a, not measured. A program of 128 x 128 with 168 registers moves
# 51 spilled registers in each iteration; with 255 none, but then a multiprocessor holds 8 warps in place of 12.
DEFAULT = {"rows_a_warp": 32, "maxnreg": 255}
ROWS_A_WARP, MAXNREG = (8, 16, 32), (None, 128, 168, 255)  # the values to choose from

_trials: list[dict[str, int | None]] = []  # the last is used


def file_of(architecture: str) -> Path:
    """Return the file that holds the choice for an architecture ("sm_90"), below $XDG_CACHE_HOME or ~/.cache."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache_home, "openrlhf_shear", f"triton_{architecture}.json")


def architecture(device: torch.device) -> str:
    """Return the architecture of a CUDA device: "sm_90" for an H100 or H200."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def options(name: str | None, block: int) -> dict[str, int | None]:
    """Return `rows_a_warp` and `maxnreg` of a solve whose blocks have `block` rows, on the architecture `name`.

    A trial is used if there is any, then a stored choice of known values. Otherwise `DEFAULT` is used, as for the name
    None; a file that exists and cannot be used gets a warning.
    """
    if _trials:
        return _trials[-1]
    return DEFAULT if name is None else _stored(name, block)


@contextmanager
def trial(chosen: dict[str, int | None]) -> Iterator[None]:
    """Use `chosen` for every solve of this process meanwhile; nothing is stored."""
    _trials.append(chosen)
    try:
        yield
    finally:
        _trials.pop()


@cache
def _stored(name: str, block: int) -> dict[str, int | None]:
    try:
        chosen = json.loads(file_of(name).read_text(encoding="utf-8"))[str(block)]
        known = chosen["rows_a_warp"] in ROWS_A_WARP and chosen["maxnreg"] in MAXNREG
    except FileNotFoundError:
        return DEFAULT
    except (OSError, ValueError, LookupError, TypeError) as error:
        logger.warning("%s is not used: %r; run benchmarks/gpu_check.py again", file_of(name), error)
        return DEFAULT
    if not known:
        logger.warning("%s is not used: it has %s; run benchmarks/gpu_check.py again", file_of(name), chosen)
        return DEFAULT
    return {key: chosen[key] for key in DEFAULT}


def keep(name: str, choices: dict[int, dict]) -> Path:
    """Write the choices for an architecture, by the rows of a block, and return the path of the file."""
    path = file_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(f".{os.getpid()}")
    aside.write_text(json.dumps({str(block): chosen for block, chosen in choices.items()}, indent=1), encoding="utf-8")
    aside.replace(path)
    forget()
    return path


def forget() -> None:
    """Read the files again at the next solve."""
    _stored.cache_clear()
