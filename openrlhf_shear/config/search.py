"""How the span search runs. It decides time and memory, never a result."""

from __future__ import annotations

from dataclasses import dataclass

from openrlhf_shear.config.knobs import knob, require_all

BACKENDS = ("auto", "torch", "numba", "triton")
TRITON_WINDOW = 128  # tokens: a block of 128 x 128 costs is what stays on chip


@dataclass(frozen=True)
class SearchConfig:
    """What runs the span search, and its memory; of every rule that reads hidden states.

    Raises:
        ValueError: a value is out of its range; the message names the knob, the value and what to use.
    """

    backend: str = knob(
        "auto",
        "What runs the span search: torch (the reference, any device), numba (CPU), triton (CUDA); auto: the fastest "
        "that is there.",
        BACKENDS,
    )
    max_cost_bytes: int = knob(
        2**30, "Upper bound on the extra memory of the span search, in bytes (>= 1 MiB); it works in chunks."
    )

    def __post_init__(self):
        least = ("max_cost_bytes", self.max_cost_bytes >= 2**20, "must be at least 1 MiB", "e.g. 1073741824")
        require_all(self, "shear", least)

    def require_fits(self, window: int) -> None:
        """
        Args:
            window: span length, in tokens.

        Raises:
            ValueError: the backend has no room for such spans.
        """
        if self.backend == "triton" and window > TRITON_WINDOW:
            raise ValueError(
                f"shear.window does not fit on the chip with shear.backend triton: got {window!r}; use at most "
                f"{TRITON_WINDOW}, or shear.backend auto"
            )
