"""Launch options of the Triton kernels: defaults, or the best that `benchmarks/gpu_check.py` found for a GPU."""

import json
import logging
import os
from functools import cache
from pathlib import Path

import torch

logger = logging.getLogger(__name__)

# Chosen from the code compiled for sm_90, not tuned. For a block of 128 x 128, 4 warps take 3400 instructions an
# iteration (over all warps), 255 registers and 158 loads of spilled registers. 8 warps take 4200, 255 and 5; 16 warps
# take 6000, 128 and 19. With 8 warps and at most 128 registers, two programs share a multiprocessor, and only checks
# and builds spill.
DEFAULT = {"rows_a_warp": 16, "maxnreg": 128}
ROWS_A_WARP, MAXNREG = (8, 16, 32), (None, 128, 168, 255)  # the values to choose from


def file_of(architecture: str) -> Path:
    """Return the file that holds the choice for an architecture ("sm_90"), below $XDG_CACHE_HOME or ~/.cache."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache_home, "openrlhf_shear", f"triton_{architecture}.json")


def architecture(device: torch.device) -> str:
    """Return the architecture of a CUDA device: "sm_90" for an H100 or H200."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@cache
def options(name: str, block: int) -> dict[str, int | None]:
    """Return `rows_a_warp` and `maxnreg` of a solve whose blocks have `block` rows, on the architecture `name`.

    A stored choice is used if its values are known ones. Otherwise `DEFAULT` is used, with a warning if the file exists
    and cannot be used.
    """
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
    options.cache_clear()
    return path
