"""Every knob of the credit rule: one frozen dataclass, with units and ranges, and no torch import.

The command line (`--shear.*`), its `--help` and the Python API are all made from `ShearConfig`; a new knob is
added here and nowhere else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

DISTANCES = ("sinkhorn", "wasserstein", "sinkhorn_transport", "chamfer", "mmd", "cosine")
NORMALIZATIONS = ("cross_rollout", "per_rollout", "none")
POOLS = ("max", "mean")
AGGREGATES = ("min", "mean", "softmin")
BACKENDS = ("auto", "torch", "numba", "triton")
TRITON_WINDOW = 128  # tokens: a block of 128 x 128 costs is what stays on chip


RULES = ("shear", "uniform", "entropy_adv")  # credit rules by name; any other is my_package.my_module:MyRule


def _knob(default, help: str, choices: tuple[str, ...] | None = None):
    return field(default=default, metadata={"help": help, "choices": choices})


@dataclass(frozen=True)
class ShearConfig:
    """What SHEAR computes and how.

    Raises:
        ValueError: a value is out of its range; the message names the knob, the value and what to use.
    """

    window: int = _knob(100, "Span length w, in tokens (>= 1). A response shorter than this is one span.")
    stride: int = _knob(25, "Distance between the starts of neighbouring spans, in tokens (1 <= stride <= window).")
    epsilon_rel: float = _knob(
        0.015,
        "Entropic regularisation of the transport, in units of the group's mean hidden-state norm (> 0). "
        "Scale-free, so it fits any model.",
    )
    epsilon: float | None = _knob(
        None,
        "Entropic regularisation in the units of the hidden states (> 0; the paper's value is 4.5). "
        "Wins over epsilon_rel when given.",
    )
    distance: str = _knob(
        "sinkhorn",
        "Distance between two spans: sinkhorn (entropic transport with the KL term, the paper's), wasserstein "
        "(exact W_1), sinkhorn_transport (the transport cost of the entropic plan, without KL), chamfer, mmd, cosine.",
        DISTANCES,
    )
    normalize: str = _knob(
        "cross_rollout",
        "cross_rollout: weights in units of the group's mean hidden-state norm (the paper's); per_rollout: each "
        "rollout's weights rescaled to the group's mean weight; none: raw units of the hidden states.",
        NORMALIZATIONS,
    )
    pool: str = _knob("max", "How the spans that cover a token give its weight.", POOLS)
    aggregate: str = _knob(
        "min",
        "How the distances to all opposing spans give a span's distance. softmin: -t log mean exp(-d / t), with t "
        "the entropic regularisation.",
        AGGREGATES,
    )
    backend: str = _knob(
        "auto",
        "What runs the span search: torch (the reference, any device), numba (CPU), triton (CUDA); auto: the fastest "
        "that is there.",
        BACKENDS,
    )
    correct_threshold: float = _knob(0.5, "A rollout counts as correct when its score is at least this (score units).")
    max_cost_bytes: int = _knob(
        2**30, "Upper bound on the extra memory of the span search, in bytes (>= 1 MiB); it works in chunks."
    )

    def __post_init__(self):
        self._require(self.window >= 1, "window", "must be at least 1", "the number of tokens in a span, e.g. 100")
        self._require(self.stride >= 1, "stride", "must be at least 1", "the number of tokens between spans, e.g. 25")
        self._require(
            self.stride <= self.window,
            "stride",
            f"must not exceed shear.window ({self.window}), or tokens between spans get no weight",
            f"at most {self.window}",
        )
        self._require(_positive(self.epsilon_rel), "epsilon_rel", "must be a positive number", "e.g. 0.015")
        if self.epsilon is not None:
            self._require(_positive(self.epsilon), "epsilon", "must be a positive number", "e.g. 4.5, or leave it out")
        self._require(math.isfinite(self.correct_threshold), "correct_threshold", "must be finite", "e.g. 0.5")
        self._require(self.max_cost_bytes >= 2**20, "max_cost_bytes", "must be at least 1 MiB", "e.g. 1073741824")
        self._require(
            self.backend != "triton" or self.window <= TRITON_WINDOW,
            "window",
            "does not fit on the chip with shear.backend triton",
            f"at most {TRITON_WINDOW}, or shear.backend auto",
        )
        for knob in fields(self):
            choices = knob.metadata["choices"]
            if choices:
                self._require(
                    getattr(self, knob.name) in choices, knob.name, "is not known", "one of " + ", ".join(choices)
                )

    def _require(self, holds: bool, name: str, problem: str, remedy: str) -> None:
        if not holds:
            raise ValueError(f"shear.{name} {problem}: got {getattr(self, name)!r}; use {remedy}")

    def epsilon_in_norms(self, mean_norm: float) -> float:
        """The entropic regularisation in units of the group's mean hidden-state norm `mean_norm` (> 0)."""
        return self.epsilon_rel if self.epsilon is None else self.epsilon / mean_norm


def _positive(value: float) -> bool:
    return math.isfinite(value) and value > 0


@dataclass(frozen=True)
class EntropyAdvConfig:
    """What `entropy_adv` adds to an advantage (Cheng et al. 2025, arXiv 2506.14758).

    Raises:
        ValueError: a value is out of its range.
    """

    alpha: float = _knob(0.4, "Advantage added for each nat of entropy (>= 0).")
    kappa: float = _knob(2.0, "No more than |A| / kappa is added (> 1, so that no sign changes).")

    def __post_init__(self):
        for name, holds, problem, remedy in (
            ("alpha", math.isfinite(self.alpha) and self.alpha >= 0, "must be at least 0", "e.g. 0.4"),
            ("kappa", math.isfinite(self.kappa) and self.kappa > 1, "must be greater than 1", "e.g. 2"),
        ):
            if not holds:
                raise ValueError(f"entropy_adv.{name} {problem}: got {getattr(self, name)!r}; use {remedy}")


@dataclass(frozen=True)
class CreditSpec:
    """Which credit rule a run uses; every worker makes its own from this (`credit.registry.load_rule`)."""

    estimator: str  # one of `RULES`, or my_package.my_module:MyRule
    shear: ShearConfig = field(default_factory=ShearConfig)
    entropy_adv: EntropyAdvConfig = field(default_factory=EntropyAdvConfig)

    @property
    def correct_threshold(self) -> float:
        """The score from which a rollout counts as correct, for every rule."""
        return self.shear.correct_threshold


def is_rule(estimator: str) -> bool:
    """Whether an estimator of the command line is a credit rule of this fork rather than one of OpenRLHF's.

    >>> is_rule("shear"), is_rule("my_package.my_module:MyRule"), is_rule("group_norm")
    (True, True, False)
    """
    module, colon, name = estimator.partition(":")
    outside = bool(colon) and name.isidentifier() and all(part.isidentifier() for part in module.split("."))
    return estimator in RULES or outside
