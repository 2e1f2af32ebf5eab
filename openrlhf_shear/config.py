"""Every knob of the credit rules: a frozen dataclass each, with units and ranges, and no torch import.

The command line (`--shear.*`, ...), its `--help` and the Python API are all made from these; a new knob is added here
and nowhere else.
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


PRM_RULES = ("prm_reshape", "pure")  # those that need a process reward model
SEARCH_RULES = ("shear", "error_odds")  # those that search spans, with --shear.backend
ADVANTAGE_RULES = ("pure",)  # those that make advantages of their own
# credit rules by name; any other is my_package.my_module:MyRule
RULES = ("shear", "uniform", "error_odds", "entropy_adv", *PRM_RULES)


def knob(default, help: str, choices: tuple[str, ...] | None = None):
    """A dataclass field that a flag can be made of (`cli.knobs.add_knob`)."""
    return field(default=default, metadata={"help": help, "choices": choices})


@dataclass(frozen=True)
class ShearConfig:
    """What SHEAR computes and how.

    Raises:
        ValueError: a value is out of its range; the message names the knob, the value and what to use.
    """

    window: int = knob(100, "Span length w, in tokens (>= 1). A response shorter than this is one span.")
    stride: int = knob(25, "Distance between the starts of neighbouring spans, in tokens (1 <= stride <= window).")
    epsilon_rel: float = knob(
        0.015,
        "Entropic regularisation of the transport, in units of the group's mean hidden-state norm (> 0). "
        "Scale-free, so it fits any model.",
    )
    epsilon: float | None = knob(
        None,
        "Entropic regularisation in the units of the hidden states (> 0; the paper's value is 4.5). "
        "Wins over epsilon_rel when given.",
    )
    distance: str = knob(
        "sinkhorn",
        "Distance between two spans: sinkhorn (entropic transport with the KL term, the paper's), wasserstein "
        "(exact W_1), sinkhorn_transport (the transport cost of the entropic plan, without KL), chamfer, mmd, cosine.",
        DISTANCES,
    )
    normalize: str = knob(
        "cross_rollout",
        "cross_rollout: weights in units of the group's mean hidden-state norm (the paper's); per_rollout: each "
        "rollout's weights rescaled to the group's mean weight; none: raw units of the hidden states.",
        NORMALIZATIONS,
    )
    pool: str = knob("max", "How the spans that cover a token give its weight.", POOLS)
    aggregate: str = knob(
        "min",
        "How the distances to all opposing spans give a span's distance. softmin: -t log mean exp(-d / t), with t "
        "the entropic regularisation.",
        AGGREGATES,
    )
    backend: str = knob(
        "auto",
        "What runs the span search: torch (the reference, any device), numba (CPU), triton (CUDA); auto: the fastest "
        "that is there.",
        BACKENDS,
    )
    correct_threshold: float = knob(0.5, "A rollout counts as correct when its score is at least this (score units).")
    max_cost_bytes: int = knob(
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
        self._require(positive(self.epsilon_rel), "epsilon_rel", "must be a positive number", "e.g. 0.015")
        if self.epsilon is not None:
            self._require(positive(self.epsilon), "epsilon", "must be a positive number", "e.g. 4.5, or leave it out")
        self._require(math.isfinite(self.correct_threshold), "correct_threshold", "must be finite", "e.g. 0.5")
        self._require(self.max_cost_bytes >= 2**20, "max_cost_bytes", "must be at least 1 MiB", "e.g. 1073741824")
        self._require(
            self.backend != "triton" or self.window <= TRITON_WINDOW,
            "window",
            "does not fit on the chip with shear.backend triton",
            f"at most {TRITON_WINDOW}, or shear.backend auto",
        )
        for each in fields(self):
            choices = each.metadata["choices"]
            if choices:
                self._require(
                    getattr(self, each.name) in choices, each.name, "is not known", "one of " + ", ".join(choices)
                )

    def _require(self, holds: bool, name: str, problem: str, remedy: str) -> None:
        if not holds:
            raise ValueError(f"shear.{name} {problem}: got {getattr(self, name)!r}; use {remedy}")

    def epsilon_in_norms(self, mean_norm: float) -> float:
        """The entropic regularisation in units of the group's mean hidden-state norm `mean_norm` (> 0)."""
        return self.epsilon_rel if self.epsilon is None else self.epsilon / mean_norm


def positive(value: float) -> bool:
    """Above 0 and finite."""
    return math.isfinite(value) and value > 0


@dataclass(frozen=True)
class ErrorOddsConfig:
    """What `error_odds` computes (`credit.error_odds`); the defaults are those of docs/credit-lab.md.

    Raises:
        ValueError: a value is out of its range.
    """

    surprisal: float = knob(2.0, "Power of the sampled token's surprisal (>= 0; 0 leaves it out).")
    entropy: float = knob(4.0, "Log odds taken off for each nat of entropy of the choice (>= 0; 0 leaves it out).")
    rise: float = knob(
        10.0,
        "Log odds added for a rise of SHEAR's weights by one mean hidden-state norm (>= 0; 0 leaves it out, and "
        "then no hidden states are read).",
    )
    reach: int = knob(8, "Tokens before and from a token on whose mean weights a rise compares (>= 1).")
    window: int = knob(8, f"Span length of SHEAR's weights here, in tokens (1 to {TRITON_WINDOW}).")
    stride: int = knob(1, "Distance between the starts of neighbouring spans, in tokens (1 <= stride <= window).")
    epsilon_rel: float = knob(0.03, "Entropic regularisation, as --shear.epsilon_rel (> 0).")

    def __post_init__(self):
        powers = ("surprisal", "entropy", "rise")
        windows, strides = f"must be 1 to {TRITON_WINDOW}", f"must be 1 to error_odds.window ({self.window})"
        require_all(
            self,
            "error_odds",
            *(
                (name, 0 <= getattr(self, name) < math.inf, "must be at least 0 and finite", "0 or more")
                for name in powers
            ),
            ("reach", self.reach >= 1, "must be at least 1", "a number of tokens, e.g. 8"),
            ("window", 1 <= self.window <= TRITON_WINDOW, windows, "a number of tokens, e.g. 8"),
            ("stride", 1 <= self.stride <= self.window, strides, "a number of tokens, e.g. 1"),
            ("epsilon_rel", positive(self.epsilon_rel), "must be a positive number", "e.g. 0.03"),
        )

    def search(self, shear: ShearConfig) -> ShearConfig:
        """SHEAR's weights as this rule reads them: of `shear` only the backend and its memory."""
        own = {name: getattr(self, name) for name in ("window", "stride", "epsilon_rel")}
        return ShearConfig(**own, backend=shear.backend, max_cost_bytes=shear.max_cost_bytes)


@dataclass(frozen=True)
class EntropyAdvConfig:
    """What `entropy_adv` adds to an advantage (Cheng et al. 2025, arXiv 2506.14758).

    Raises:
        ValueError: a value is out of its range.
    """

    alpha: float = knob(0.4, "Advantage added for each nat of entropy (>= 0).")
    kappa: float = knob(2.0, "No more than |A| / kappa is added (> 1, so that no sign changes).")

    def __post_init__(self):
        require_all(
            self,
            "entropy_adv",
            ("alpha", math.isfinite(self.alpha) and self.alpha >= 0, "must be at least 0", "e.g. 0.4"),
            ("kappa", math.isfinite(self.kappa) and self.kappa > 1, "must be greater than 1", "e.g. 2"),
        )


@dataclass(frozen=True)
class PureConfig:
    """What `pure` computes (Cheng et al. 2025, arXiv 2504.15275).

    Raises:
        ValueError: a value is out of its range.
    """

    temperature: float = knob(0.1, "T of the softmax that puts a rollout's credit on its worst step (> 0).")
    verifiable_coef: float = knob(1.0, "What the verifiable reward at the last token is multiplied by (>= 0).")
    width: int | None = knob(
        None,
        "Tokens that the baseline averages a rollout's returns over (>= 1); unset: --rollout.max_new_tokens, to which "
        "the authors' code pads, or where that is unset too the group's longest response.",
    )

    def __post_init__(self):
        coef = self.verifiable_coef
        require_all(
            self,
            "pure",
            ("temperature", positive(self.temperature), "must be a positive number", "e.g. 0.1"),
            ("verifiable_coef", math.isfinite(coef) and coef >= 0, "must be at least 0", "e.g. 1"),
            ("width", self.width is None or self.width >= 1, "must be at least 1", "e.g. 3072, or leave it out"),
        )


@dataclass(frozen=True)
class PrmConfig:
    """The process reward model of the rules that need one, and where it runs.

    Raises:
        ValueError: a value is out of its range.
    """

    model_name_or_path: str | None = knob(
        None, "Process reward model, a folder or hub id in the format of Qwen/Qwen2.5-Math-PRM-7B."
    )
    num_nodes: int = knob(1, "Nodes of its actor group.")
    num_gpus_per_node: int = knob(
        8, "GPUs a node of its actor group: the actor's own with --train.colocate_all, others without it."
    )
    micro_batch_size: int = knob(8, "Rollouts a forward pass.")
    max_len: int = knob(4096, "Tokens of problem and steps that it reads; further steps get no score.")
    separator: str = knob("\\n\\n", "What ends a step in a response, in ASCII; \\n is a line break.")
    offload: bool = knob(False, "Keep its weights in CPU memory between forward passes (ZeRO-3 offload).")

    def __post_init__(self):
        counts = ("num_nodes", "num_gpus_per_node", "micro_batch_size", "max_len")
        require_all(
            self,
            "prm",
            *((name, getattr(self, name) >= 1, "must be at least 1", "a positive number") for name in counts),
            ("separator", self.separator.isascii() and self.separator, "must be ASCII text", r"e.g. \n\n"),
        )

    @property
    def step_end(self) -> str:
        """The separator itself."""
        return self.separator.replace("\\n", "\n")


def require_all(config, prefix: str, *requirements: tuple[str, bool, str, str]) -> None:
    """
    Args:
        requirements: (field, whether its value is right, what is wrong otherwise, what to use) each.

    Raises:
        ValueError: the first that does not hold.
    """
    for name, holds, problem, remedy in requirements:
        if not holds:
            raise ValueError(f"{prefix}.{name} {problem}: got {getattr(config, name)!r}; use {remedy}")


@dataclass(frozen=True)
class CreditSpec:
    """Which credit rule a run uses; every worker makes its own from this (`credit.registry.load_rule`)."""

    estimator: str  # one of `RULES`, or my_package.my_module:MyRule
    shear: ShearConfig = field(default_factory=ShearConfig)
    error_odds: ErrorOddsConfig = field(default_factory=ErrorOddsConfig)
    entropy_adv: EntropyAdvConfig = field(default_factory=EntropyAdvConfig)
    pure: PureConfig = field(default_factory=PureConfig)
    prm: PrmConfig = field(default_factory=PrmConfig)

    @property
    def correct_threshold(self) -> float:
        """The score from which a rollout counts as correct, for every rule."""
        return self.shear.correct_threshold


def is_rule(estimator: str) -> bool:
    """Whether an estimator of the command line is a credit rule of this fork rather than one of OpenRLHF's.

    >>> is_rule("shear"), is_rule("my_package.my_module:MyRule"), is_rule("group_norm")
    (True, True, False)
    """
    return estimator in RULES or is_outside(estimator)


def is_outside(estimator: str) -> bool:
    """Whether it names a credit rule from outside the package, `my_package.my_module:MyRule`."""
    module, colon, name = estimator.partition(":")
    return bool(colon) and name.isidentifier() and all(part.isidentifier() for part in module.split("."))
