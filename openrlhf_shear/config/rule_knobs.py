"""Knobs of the built-in credit rules, a class a rule; `rules.py` has the table of the rules."""

import math
from dataclasses import dataclass

from openrlhf_shear.config.knobs import knob, positive, require_all
from openrlhf_shear.config.spans import SpanCut

DISTANCES = ("sinkhorn", "wasserstein", "sinkhorn_transport", "chamfer", "mmd", "cosine")
NORMALIZATIONS = ("cross_rollout", "per_rollout", "none")
POOLS = ("max", "mean")
AGGREGATES = ("min", "mean", "softmin")
ENTROPIC = ("sinkhorn", "sinkhorn_transport")  # distances whose values depend on epsilon


@dataclass(frozen=True)
class ShearConfig(SpanCut):
    """Knobs of SHEAR, beside those of its spans (`SpanCut`)."""

    epsilon_rel: float = knob(
        0.015,
        "Entropic regularisation of the transport, in units of the group's mean hidden-state norm (> 0). "
        "Scale-free, so it fits any model.",
    )
    epsilon: float | None = knob(
        None,
        "Entropic regularisation in the units of the hidden states (> 0; the paper's is 4.5, as we infer). "
        "Overrides epsilon_rel.",
    )
    epsilon_spread: float | None = knob(
        None,
        "Entropic regularisation, in units of the standard deviation of the costs between tokens of rollouts with "
        "opposite outcomes (> 0, e.g. 0.1). For states with massive dimensions, which raise the mean norm and not "
        "this deviation. Overrides epsilon_rel; cannot be set with epsilon. Unset: epsilon_rel.",
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
    pool: str = knob("max", "How a token's weight follows from the distances of the spans that cover it.", POOLS)
    aggregate: str = knob(
        "min",
        "How a span's distance follows from its distances to all opposing spans. softmin: -t log mean exp(-d / t), "
        "with t the entropic regularisation.",
        AGGREGATES,
    )

    def __post_init__(self):
        epsilon = self.epsilon is None or positive(self.epsilon)
        spread = self.epsilon_spread is None or positive(self.epsilon_spread)
        alone = self.epsilon_spread is None or self.epsilon is None
        require_all(
            self,
            self.owner,
            *self._requirements(),
            ("epsilon_rel", positive(self.epsilon_rel), "must be a positive number", "e.g. 0.015"),
            ("epsilon", epsilon, "must be a positive number", "e.g. 4.5, or leave it out"),
            ("epsilon_spread", spread, "must be a positive number", "e.g. 0.1, or leave it out"),
            ("epsilon_spread", alone, f"cannot be set with {self.owner}.epsilon", "one of the two"),
        )

    def epsilon_in_norms(self, mean_norm: float, spread: float) -> float:
        """Return the entropic regularisation in units of the group's mean hidden-state norm `mean_norm` (> 0).

        `spread` is the deviation of the costs in the same units; only `epsilon_spread` reads it. Where it is 0, all
        costs are equal, and distances are the same for every epsilon.
        """
        if self.epsilon_spread is not None and spread > 0:
            return self.epsilon_spread * spread
        return self.epsilon_rel if self.epsilon is None else self.epsilon / mean_norm


@dataclass(frozen=True)
class TextConfig(ShearConfig):
    """Knobs of `text`: those of SHEAR, and the length of an n-gram."""

    owner = "text"
    ngram: int = knob(3, "Tokens of an n-gram, whose one-hot vector stands in for a token's hidden state (>= 1).")

    def __post_init__(self):
        super().__post_init__()
        exact = self.distance not in ("mmd", "cosine")  # these read the states of one side, which share axes
        require_all(
            self,
            self.owner,
            ("ngram", self.ngram >= 1, "must be at least 1", "e.g. 3"),
            ("distance", exact, "must depend on costs between opposing tokens alone", "e.g. sinkhorn"),
        )


@dataclass(frozen=True)
class EntropyAdvConfig:
    """Knobs of `entropy_adv`, which adds an entropy term to each advantage (Cheng et al. 2025, arXiv 2506.14758)."""

    alpha: float = knob(0.4, "Advantage added for each nat of entropy (>= 0).")
    kappa: float = knob(2.0, "Limit of the added term: |A| / kappa (> 1, so that no sign changes).")

    def __post_init__(self):
        require_all(
            self,
            "entropy_adv",
            ("alpha", math.isfinite(self.alpha) and self.alpha >= 0, "must be at least 0", "e.g. 0.4"),
            ("kappa", math.isfinite(self.kappa) and self.kappa > 1, "must be greater than 1", "e.g. 2"),
        )


@dataclass(frozen=True)
class EntropyMaskConfig:
    """Knobs of `entropy_mask` (Wang et al. 2025, arXiv 2506.01939)."""

    fraction: float = knob(
        0.2, "Share of a group's tokens to train on, those with the highest entropy (> 0, at most 1)."
    )

    def __post_init__(self):
        fraction = 0 < self.fraction <= 1
        require_all(self, "entropy_mask", ("fraction", fraction, "must be above 0 and at most 1", "e.g. 0.2"))


@dataclass(frozen=True)
class GtpoConfig:
    """Knobs of `gtpo` (Tan et al. 2025, arXiv 2508.04349)."""

    alpha1: float = knob(1.0, "Reward of each token for the rollout's outcome (> 0).")
    alpha2: float = knob(0.1, "Mean reward of a token for its entropy, beside alpha1 (>= 0).")
    normalize: str = knob(
        "together",
        "Tokens that share a mean and deviation: all of a group, or those of correct and incorrect rollouts apart, "
        "where the outcome cancels.",
        ("together", "apart"),
    )

    def __post_init__(self):
        entropy = math.isfinite(self.alpha2) and self.alpha2 >= 0
        require_all(
            self,
            "gtpo",
            ("alpha1", positive(self.alpha1), "must be a positive number", "e.g. 1"),
            ("alpha2", entropy, "must be at least 0", "e.g. 0.1"),
        )


@dataclass(frozen=True)
class KtaeConfig:
    """Knobs of `ktae` (Sun et al. 2025, arXiv 2505.16826)."""

    fisher: float = knob(1.0, "Weight of Fisher's exact test in a token's association with the outcome (>= 0).")
    gain: float = knob(1.0, "Weight of the information gain, beside fisher (>= 0, one of the two > 0).")
    frequency: float = knob(1.0, "Weight of term frequencies in the association's direction (>= 0).")
    scale: float = knob(1.0, "Limit of what is added to a token's advantage (> 0).")

    def __post_init__(self):
        weights = [
            (name, math.isfinite(value) and value >= 0, "must be at least 0", "e.g. 1")
            for name, value in (("fisher", self.fisher), ("gain", self.gain), ("frequency", self.frequency))
        ]
        both = self.fisher != 0 or self.gain != 0
        require_all(
            self,
            "ktae",
            *weights,
            ("gain", both, "must be above 0 where ktae.fisher is 0", "e.g. 1"),
            ("scale", positive(self.scale), "must be a positive number", "e.g. 1"),
        )


@dataclass(frozen=True)
class PureConfig:
    """Knobs of `pure` (Cheng et al. 2025, arXiv 2504.15275)."""

    temperature: float = knob(0.1, "T of the softmax that puts a rollout's credit on its worst step (> 0).")
    verifiable_coef: float = knob(1.0, "Factor of the verifiable reward at the last token (>= 0).")
    width: int | None = knob(
        None,
        "Tokens over which the baseline averages a rollout's returns (>= 1). Unset: --rollout.max_new_tokens, to which "
        "the authors' code pads; if that is unset too, the length of the group's longest response.",
        fallback="rollout.max_new_tokens",
    )

    def __post_init__(self):
        coefficient = math.isfinite(self.verifiable_coef) and self.verifiable_coef >= 0
        require_all(
            self,
            "pure",
            ("temperature", positive(self.temperature), "must be a positive number", "e.g. 0.1"),
            ("verifiable_coef", coefficient, "must be at least 0", "e.g. 1"),
            ("width", self.width is None or self.width >= 1, "must be at least 1", "e.g. 3072, or leave it out"),
        )


@dataclass(frozen=True)
class OtbConfig:
    """Knobs of `otb` (Li et al. 2026, arXiv 2602.07078)."""

    tail: str = knob(
        "zero",
        "Baseline of tokens at a place that no other rollout has: zero (verl's), or the rollout's own reward, as the "
        "formula gives, so that they learn nothing.",
        ("zero", "own"),
    )

    def __post_init__(self):
        require_all(self, "otb")


@dataclass(frozen=True)
class DeltaConfig:
    """Knobs of `delta` (Zhang et al. 2026, arXiv 2605.21467)."""

    low: float = knob(0.8, "Weight of a token that looks like the other side, before scaling to mean 1 (> 0).")
    high: float = knob(1.2, "Weight of a token that looks like its own side, before scaling (>= low).")
    rounds: int = knob(1, "Rounds in which the centroids are made anew from tokens near their own side (>= 0).")

    def __post_init__(self):
        high = math.isfinite(self.high) and self.high >= self.low
        require_all(
            self,
            "delta",
            ("low", positive(self.low), "must be a positive number", "e.g. 0.8"),
            ("high", high, "must be at least delta.low", "e.g. 1.2"),
            ("rounds", self.rounds >= 0, "must be at least 0", "e.g. 1"),
        )


@dataclass(frozen=True)
class NthrConfig:
    """Knobs of `nthr` (Deng et al. 2025, arXiv 2505.18830)."""

    beta: float = knob(1.0, "Factor of the threshold above which blame is reduced (>= 0).")
    eta: float | None = knob(
        None, "Factor of the blame above it (0 to 1). Unset: 2 |1/2 - p|, p the group's share of correct rollouts."
    )
    vocabulary: str = knob(
        "responses",
        "Entries of the prediction errors to compare: those of ids in the group's responses, or all, which costs more.",
        ("responses", "all"),
    )

    def __post_init__(self):
        require_all(
            self,
            "nthr",
            ("beta", math.isfinite(self.beta) and self.beta >= 0, "must be at least 0", "e.g. 1"),
            ("eta", self.eta is None or 0 <= self.eta <= 1, "must be between 0 and 1", "e.g. 0, or leave it out"),
        )


@dataclass(frozen=True)
class FipoConfig:
    """Knobs of `fipo` (Ma et al. 2026, arXiv 2603.19835)."""

    half_life: float = knob(32.0, "Tokens over which the weight of a later token's change halves (> 0).")
    clip_low: float = knob(0.0, "Factors are at least 1 minus this (0 to below 1).")
    clip_high: float = knob(0.2, "Factors are at most 1 plus this (>= 0).")
    outlier: float = knob(
        10.0,
        "Leave tokens with a larger probability ratio out of all sums (> 1; 0, ms-swift's default: leave none out).",
    )
    safety: float = knob(
        10.0,
        "Limit the factor to between 0.8 and 1 for blamed tokens with a larger probability ratio (> 1; ms-swift's "
        "default is 4; 0: for no token).",
    )

    def __post_init__(self):
        high = math.isfinite(self.clip_high) and self.clip_high >= 0
        ratios = [
            (name, ratio == 0 or (math.isfinite(ratio) and ratio > 1), "must be above 1, or 0", "e.g. 10")
            for name, ratio in (("outlier", self.outlier), ("safety", self.safety))
        ]
        require_all(
            self,
            "fipo",
            ("half_life", positive(self.half_life), "must be a positive number", "e.g. 32"),
            ("clip_low", 0 <= self.clip_low < 1, "must be at least 0 and below 1", "e.g. 0.2"),
            ("clip_high", high, "must be at least 0", "e.g. 0.2"),
            *ratios,
        )


@dataclass(frozen=True)
class SproConfig:
    """Knobs of `spro` (Fei et al. 2025, arXiv 2507.01551)."""

    beta: float = knob(0.05, "Reward of a token for each nat of log-ratio to the reference model (> 0).")

    def __post_init__(self):
        require_all(self, "spro", ("beta", positive(self.beta), "must be a positive number", "e.g. 0.05"))


@dataclass(frozen=True)
class RlsdConfig:
    """Knobs of `rlsd` (arXiv 2604.03128), as in ms-swift."""

    strength: float = knob(0.5, "Share of the reweighted advantage, beside the plain advantage (0 to 1).")
    clip: float = knob(0.2, "Weights are 1 minus this to 1 plus this (0 to below 1).")
    decay_steps: int = knob(0, "Training steps over which the strength falls to 0, in a line (0: it stays).")

    def __post_init__(self):
        require_all(
            self,
            "rlsd",
            ("strength", 0 <= self.strength <= 1, "must be between 0 and 1", "e.g. 0.5"),
            ("clip", 0 <= self.clip < 1, "must be at least 0 and below 1", "e.g. 0.2"),
            ("decay_steps", self.decay_steps >= 0, "must be at least 0", "e.g. 50"),
        )


@dataclass(frozen=True)
class SdpoConfig:
    """Knobs of `sdpo` (Hübotter et al. 2026, arXiv 2601.20802)."""

    share: float = knob(1.0, "Share of the hint's advantage; GRPO's advantage has the rest (above 0, at most 1).")

    def __post_init__(self):
        require_all(self, "sdpo", ("share", 0 < self.share <= 1, "must be above 0 and at most 1", "e.g. 1"))


@dataclass(frozen=True)
class VineConfig:
    """Knobs of `vine` (Kazemnejad et al. 2024, arXiv 2410.01679)."""

    every: int = knob(32, "Tokens of a step, at whose start a value is estimated (>= 1).")
    samples: int = knob(9, "Continuations for each value (>= 1).")
    whiten: bool = knob(True, "Scale a training step's advantages to mean 0 and variance 1.")

    def __post_init__(self):
        counts = (("every", self.every, "e.g. 32"), ("samples", self.samples, "e.g. 9"))
        require_all(self, "vine", *((name, n >= 1, "must be at least 1", remedy) for name, n, remedy in counts))
