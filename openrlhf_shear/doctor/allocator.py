"""Check of torch's CUDA allocator: memory in expandable segments is not shared between processes everywhere."""

import os
from collections.abc import Mapping

from openrlhf_shear.doctor.result import Result, ok, warn

_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # torch reads the first set


def expandable(environ: Mapping[str, str] = os.environ) -> str:
    """Return the variable that turns expandable segments on, or "".

    >>> expandable({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64, expandable_segments:True"})
    'PYTORCH_ALLOC_CONF'
    >>> expandable({"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": ""})
    ''
    """
    name = next((name for name in _VARIABLES if name in environ), "")
    settings = "".join(environ.get(name, "").split()).split(",")
    return name if "expandable_segments:True" in settings else ""


def allocator(environ: Mapping[str, str] = os.environ) -> Result:
    """Warn of expandable segments, which `--train.colocate_all` cannot send to vLLM."""
    name = "CUDA allocator"
    if variable := expandable(environ):
        seen = f"{variable} is {environ[variable]}: --train.colocate_all cannot send weights to vLLM"
        return warn(name, seen, f"unset {variable} before ray start; no action without --train.colocate_all")
    return ok(name, "no expandable segments")
