"""Knobs of the rules that measure spans: SHEAR, its control on the text, and `error_odds`.

How a response is cut into spans is `SpanCut`, which these rules share and code passes on whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from openrlhf_shear.config.knobs import COUNT, NOT_NEGATIVE, POSITIVE, Knobs, Range, knob
from openrlhf_shear.config.refusal import Refusal

TAILS = ("one", "every")
DISTANCES = ("sinkhorn", "wasserstein", "chamfer", "mmd", "cosine")
NORMALIZATIONS = ("cross_rollout", "per_rollout", "none")
POOLS = ("max", "mean")


@dataclass(frozen=True)
class SpanCut(Knobs, section="shear"):
    """Spans of a response. `transport.geometry.span_starts` makes them.

    >>> SpanCut(window=50, stride=10).max_spans
    0
    """

    window: int = knob(100, "Span length w, in tokens. A response shorter than this is a single span.", COUNT)
    stride: int = knob(25, "Distance between the starts of neighbouring spans, in tokens, up to the window.", COUNT)
    max_spans: int = knob(
        0,
        "Most spans of a rollout (0: any number). A longer rollout gets a larger stride, up to the window. The search "
        "time grows with the pairs of spans: 32k tokens with a stride of 25 have 1277 spans a rollout.",
        NOT_NEGATIVE,
    )
    tail: str = knob(
        "one",
        "Spans at the end of a response. one: the first span that reaches the end is the last; every: a span at every "
        "start below the length, shorter and shorter, which is another reading of the paper.",
        TAILS,
    )

    def conflicts(self) -> Iterator[Refusal]:
        if self.stride > self.window:
            problem = f"must not exceed {self.section}.window ({self.window}), or tokens between spans get no weight"
            yield self.refusal("stride", problem, f"at most {self.window}")


@dataclass(frozen=True)
class ShearConfig(SpanCut):
    """Knobs of SHEAR, beside those of its spans (`SpanCut`)."""

    epsilon_rel: float = knob(
        0.015,
        "Entropic regularisation of the transport, in units of the group's mean hidden-state norm. Scale-free, so it "
        "fits any model.",
        POSITIVE,
    )
    epsilon: float | None = knob(
        None,
        "Entropic regularisation in the units of the hidden states (the paper's is 4.5, as we infer). Overrides "
        "epsilon_rel.",
        Range(0, open_least=True, remedy="e.g. 4.5, or leave it out"),
    )
    epsilon_spread: float | None = knob(
        None,
        "Entropic regularisation, in units of the standard deviation of the costs between tokens of rollouts with "
        "opposite outcomes, e.g. 0.1. For states with massive dimensions, which raise the mean norm and not this "
        "deviation. Overrides epsilon_rel; cannot be set with epsilon. Unset: epsilon_rel.",
        Range(0, open_least=True, remedy="e.g. 0.1, or leave it out"),
    )
    distance: str = knob(
        "sinkhorn",
        "Distance between two spans: sinkhorn (entropic transport with the KL term, the paper's), wasserstein "
        "(exact W_1), chamfer, mmd, cosine.",
        DISTANCES,
    )
    normalize: str = knob(
        "cross_rollout",
        "cross_rollout: weights in units of the group's mean hidden-state norm (the paper's); per_rollout: each "
        "rollout's weights rescaled to the group's mean weight; none: raw units of the hidden states.",
        NORMALIZATIONS,
    )
    pool: str = knob("max", "How a token's weight follows from the distances of the spans that cover it.", POOLS)

    def conflicts(self) -> Iterator[Refusal]:
        yield from super().conflicts()
        if self.epsilon_spread is not None and self.epsilon is not None:
            yield self.refusal("epsilon_spread", f"cannot be set with {self.section}.epsilon", "one of the two")

    def epsilon_in_norms(self, mean_norm: float, spread: float) -> float:
        """Return the entropic regularisation in units of the group's mean hidden-state norm `mean_norm` (> 0).

        `spread` is the deviation of the costs in the same units; only `epsilon_spread` reads it. Where it is 0, all
        costs are equal, and distances are the same for every epsilon.
        """
        if self.epsilon_spread is not None and spread > 0:
            return self.epsilon_spread * spread
        return self.epsilon_rel if self.epsilon is None else self.epsilon / mean_norm


@dataclass(frozen=True)
class TextConfig(ShearConfig, section="text"):
    """Knobs of `text`: those of SHEAR, and the length of an n-gram."""

    ngram: int = knob(3, "Tokens of an n-gram, whose one-hot vector stands in for a token's hidden state.", COUNT)

    def conflicts(self) -> Iterator[Refusal]:
        yield from super().conflicts()
        if self.distance in ("mmd", "cosine"):  # these read the states of one side, which share axes
            problem = "must depend on costs between opposing tokens alone"
            yield self.refusal("distance", problem, "e.g. sinkhorn")


@dataclass(frozen=True)
class ErrorOddsConfig(SpanCut, section="error_odds"):
    """Knobs of `error_odds`; those of its spans are for SHEAR's weights, whose rise it reads."""

    surprisal: float = knob(2.0, "Power of the sampled token's surprisal; 0 leaves it out.", NOT_NEGATIVE)
    entropy: float = knob(
        4.0, "Log odds subtracted for each nat of entropy of the choice; 0 leaves it out.", NOT_NEGATIVE
    )
    rise: float = knob(
        10.0,
        "Log odds added for a rise of SHEAR's weights by one mean hidden-state norm; 0 leaves it out, and then no "
        "hidden states are read.",
        NOT_NEGATIVE,
    )
    reach: int = knob(8, "Tokens before and from a token on whose mean weights a rise compares.", COUNT)
    window: int = knob(8, "Span length, in tokens.", Range(1, 128))
    stride: int = knob(1, "Distance between the starts of neighbouring spans, in tokens, up to the window.", COUNT)
    epsilon_rel: float = knob(0.03, "Entropic regularisation, as --shear.epsilon_rel.", POSITIVE)
    epsilon_spread: float | None = knob(
        None,
        "Entropic regularisation, as --shear.epsilon_spread. Overrides epsilon_rel. Unset: epsilon_rel.",
        Range(0, open_least=True, remedy="e.g. 0.1, or leave it out"),
    )

    def idle_needs(self) -> frozenset[str]:
        return frozenset() if self.rise else frozenset({"hidden_states"})

    @property
    def shear(self) -> ShearConfig:
        """Knobs of SHEAR's weights with these spans."""
        shared = {each.name for each in fields(self)} & {each.name for each in fields(ShearConfig)}
        return ShearConfig(**{name: getattr(self, name) for name in shared})
