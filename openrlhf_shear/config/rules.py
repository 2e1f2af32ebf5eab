"""The built-in credit rules: their knobs, and the one table of them, from which all else derives.

A new rule is its file in `credit/rules/` and an entry of `RULES`, with its knobs above it where it has some.
"""

import math
from dataclasses import dataclass

from openrlhf_shear.config.knobs import knob, positive, require_all
from openrlhf_shear.config.spans import SpanCut

DISTANCES = ("sinkhorn", "wasserstein", "sinkhorn_transport", "chamfer", "mmd", "cosine")
NORMALIZATIONS = ("cross_rollout", "per_rollout", "none")
POOLS = ("max", "mean")
AGGREGATES = ("min", "mean", "softmin")


@dataclass(frozen=True)
class ShearConfig(SpanCut):
    """What SHEAR computes, over the spans of `SpanCut`."""

    epsilon_rel: float = knob(
        0.015,
        "Entropic regularisation of the transport, in units of the group's mean hidden-state norm (> 0). "
        "Scale-free, so it fits any model.",
    )
    epsilon: float | None = knob(
        None,
        "Entropic regularisation in the units of the hidden states (> 0; the paper's is 4.5, as we infer). "
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

    def __post_init__(self):
        epsilon = self.epsilon is None or positive(self.epsilon)
        require_all(
            self,
            "shear",
            *self._requirements(),
            ("epsilon_rel", positive(self.epsilon_rel), "must be a positive number", "e.g. 0.015"),
            ("epsilon", epsilon, "must be a positive number", "e.g. 4.5, or leave it out"),
        )

    def epsilon_in_norms(self, mean_norm: float) -> float:
        """The entropic regularisation in units of the group's mean hidden-state norm `mean_norm` (> 0)."""
        return self.epsilon_rel if self.epsilon is None else self.epsilon / mean_norm


@dataclass(frozen=True)
class EntropyAdvConfig:
    """What `entropy_adv` adds to an advantage (Cheng et al. 2025, arXiv 2506.14758)."""

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
    """What `pure` computes (Cheng et al. 2025, arXiv 2504.15275)."""

    temperature: float = knob(0.1, "T of the softmax that puts a rollout's credit on its worst step (> 0).")
    verifiable_coef: float = knob(1.0, "What the verifiable reward at the last token is multiplied by (>= 0).")
    width: int | None = knob(
        None,
        "Tokens that the baseline averages a rollout's returns over (>= 1); unset: --rollout.max_new_tokens, to which "
        "the authors' code pads, or where that is unset too the group's longest response.",
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
class Traits:
    """What a run must know of a rule beside its credit."""

    kind: str = "weights"  # of OpenRLHF's advantages; "advantages" in their place; "update": acts in it
    needs: frozenset[str] = frozenset()  # of `credit.rule.NEEDS`, or of `credit.rule.UPDATE_NEEDS`


@dataclass(frozen=True)
class BuiltIn:
    """What is to be known of a rule before torch is loaded; a test holds it to the rule's class."""

    name: str  # on the command line, and before the slash of its metrics
    where: str  # module and class, `openrlhf_shear.credit.rules.shear:ShearRule`
    about: str  # what it does, in a few words, for `--help`
    traits: Traits = Traits()
    config: type | None = None  # its knobs, flags `--NAME.*`; None for a rule without
    title: str | None = None  # in reports; without one it is shown by its name,
    ink: str | None = None  # in a colour that is left


_HERE = "openrlhf_shear.credit.rules"
RULES: dict[str, BuiltIn] = {
    rule.name: rule
    for rule in (
        BuiltIn("uniform", f"{_HERE}.uniform:UniformRule", "weights of 1 everywhere (GRPO itself)"),
        BuiltIn(
            "entropy_adv",
            f"{_HERE}.entropy_adv:EntropyAdvRule",
            "adds to the advantages of tokens at which the policy hesitates",
            Traits("update", frozenset({"entropies"})),
            config=EntropyAdvConfig,
            title="Entropy adv.",
            ink="orange",
        ),
        BuiltIn(
            "prm_reshape",
            f"{_HERE}.prm_reshape:PrmReshapeRule",
            "weights by how right a process reward model finds the token's step",
            Traits(needs=frozenset({"prm_scores"})),
            title="PRM(Reshape adv.)",
            ink="green",
        ),
        BuiltIn(
            "pure",
            f"{_HERE}.pure:PureRule",
            "advantages of its own, from a process reward model's worst step",
            Traits("advantages", frozenset({"prm_scores"})),
            config=PureConfig,
            title="PRM(PURE)",
            ink="purple",
        ),
        BuiltIn(
            "shear",
            f"{_HERE}.shear:ShearRule",
            "weights from the hidden states",
            Traits(needs=frozenset({"hidden_states"})),
            config=ShearConfig,
            title="SHEAR",
            ink="blue",
        ),
    )
}
