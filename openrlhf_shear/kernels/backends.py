"""Availability of the span search's backends, decided once, with the reason."""

from __future__ import annotations

import logging
from functools import cache

logger = logging.getLogger(__name__)


@cache
def choose_backend(asked: str) -> str:
    """The backend that a search runs on; says once a process what was chosen and why.

    Args:
        asked: `ShearConfig.backend`: "auto", or a backend to force.

    Raises:
        ValueError: the forced backend does not exist.
    """
    if asked not in ("auto", "torch"):
        raise ValueError(f"shear.backend {asked!r} is not known; use auto or torch")
    reason = "asked for" if asked == "torch" else "the only backend of this version; runs on the device of the states"
    logger.info("span search backend: torch (%s)", reason)
    return "torch"
