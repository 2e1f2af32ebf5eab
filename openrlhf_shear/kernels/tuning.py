"""How the Triton kernels are launched: by default, or as `benchmarks/gpu_check.py` found best on this architecture."""

import json
import logging
import os
from functools import cache
from pathlib import Path

import torch

logger = logging.getLogger(__name__)

# Chosen from the code compiled for sm_90, not tuned. For 128 x 128, instructions of an iteration in all warps,
# registers, loads of spilled ones: 4 warps 3400, 255, 158; 8 warps 4200, 255, 5; 16 warps 6000, 128, 19. Bounding 8
# warps by 128 registers lets two programs share a multiprocessor, and spills at checks and builds alone.
DEFAULT = {"rows_a_warp": 16, "maxnreg": 128}
ROWS_A_WARP, MAXNREG = (8, 16, 32), (None, 128, 168, 255)  # what there is to choose from


def file_of(architecture: str) -> Path:
    """Where the choice for an architecture ("sm_90") is kept, below $XDG_CACHE_HOME or ~/.cache."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache_home, "openrlhf_shear", f"triton_{architecture}.json")


def architecture(device: torch.device) -> str:
    """ "sm_90" for an H100 or H200."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@cache
def options(name: str, block: int) -> dict[str, int | None]:
    """`rows_a_warp` and `maxnreg` of a solve whose blocks have `block` rows, on an architecture by its name; what was
    found is used where it is there and of the known values, else `DEFAULT`."""
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
    return {key: chosen[key] for key in DEFAULT} if known else DEFAULT


def keep(name: str, choices: dict[int, dict]) -> Path:
    """Write the choices, by rows of the block; where."""
    path = file_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(f".{os.getpid()}")
    aside.write_text(json.dumps({str(block): chosen for block, chosen in choices.items()}, indent=1), encoding="utf-8")
    aside.replace(path)
    options.cache_clear()
    return path
