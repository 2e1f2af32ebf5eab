"""Description of every built-in credit rule, from which flags, help, checks, the lab's names and reports follow.

A new rule `name` is a class `NameRule` in `credit/rules/name.py`, and a description here: its class of knobs under
`described`, or a call of `describe` if it has none. Nothing here needs torch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from openrlhf_shear.config.knobs import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, Knobs, Range, knob
from openrlhf_shear.config.refusal import Refusal
from openrlhf_shear.config.shear import ErrorOddsConfig, ShearConfig, TextConfig

LAB_ALONE = ("hint_log_probs", "continuations")  # needs that only the credit lab gives
_PART = Range(0, 1, open_least=True)
_BELOW_1 = Range(0, 1, open_most=True)
_RATIO = Range(1, open_least=True, also=0, remedy="e.g. 10")


@dataclass(frozen=True)
class Traits:
    """What a run must know of a rule besides its credit."""

    kind: str = "weights"  # "weights" multiply OpenRLHF's advantages; "advantages" replace them; "update" acts in it
    needs: frozenset[str] = frozenset()  # names from `credit.rule.NEEDS`, or from `credit.rule.UPDATE_NEEDS`

    @property
    def lab_alone(self) -> list[str]:
        """Needs for which only the credit lab can run the rule, sorted; training refuses it."""
        return sorted(self.needs.intersection(LAB_ALONE))


@dataclass(frozen=True)
class BuiltIn:
    """Facts about a rule that are needed before torch is loaded; a test compares them with the rule's class."""

    name: str  # on the command line, and before the slash of its metrics
    about: str  # what it does, in a few words, for `--help`
    traits: Traits = Traits()  # with the default knobs
    config: type[Knobs] | None = None  # its knobs, which become flags `--NAME.*`; None for a rule without knobs
    title: str | None = None  # title in reports (default: the name)
    ink: str | None = None  # colour in reports (default: the next unused colour)

    @property
    def where(self) -> str:
        """Module and class, e.g. `openrlhf_shear.credit.rules.entropy_adv:EntropyAdvRule`."""
        return f"openrlhf_shear.credit.rules.{self.name}:{self.name.title().replace('_', '')}Rule"


RULES: dict[str, BuiltIn] = {}
K = TypeVar("K", bound=Knobs)


def describe(name: str, about: str, needs: str = "", kind: str = "weights", **others) -> None:
    """Add a rule to `RULES`; `needs` are names with spaces between them, and `others` further fields of `BuiltIn`."""
    RULES[name] = BuiltIn(name, about, Traits(kind, frozenset(needs.split())), **others)


def described(about: str, **others) -> Callable[[type[K]], type[K]]:
    """Add the rule of the decorated class of knobs to `RULES`."""

    def add(config: type[K]) -> type[K]:
        describe(config.section, about, config=config, **others)
        return config

    return add


describe("uniform", "weights of 1 everywhere (GRPO itself)")


@described(
    "adds to the advantages of tokens at which the policy is unsure",
    needs="entropies",
    kind="update",
    title="Entropy adv.",
    ink="orange",
)
@dataclass(frozen=True)
class EntropyAdvConfig(Knobs, section="entropy_adv"):
    """Knobs of `entropy_adv`, which adds an entropy term to each advantage (Cheng et al. 2025, arXiv 2506.14758)."""

    alpha: float = knob(0.4, "Advantage added for each nat of entropy.", NOT_NEGATIVE)
    kappa: float = knob(
        2.0, "Limit of the added term: |A| / kappa. Above 1, no sign changes.", Range(1, open_least=True)
    )


@described(
    "weights of 1 for the group's tokens with the highest entropy, 0 for the others",
    needs="entropies",
    title="Entropy mask",
)
@dataclass(frozen=True)
class EntropyMaskConfig(Knobs, section="entropy_mask"):
    """Knobs of `entropy_mask` (Wang et al. 2025, arXiv 2506.01939)."""

    fraction: float = knob(0.2, "Share of a group's tokens to train on, those with the highest entropy.", _PART)


@described(
    "weights of 0 for praised tokens that the policy was sure not to sample",
    needs="log_probs entropies",
    title="STAPO",
)
@dataclass(frozen=True)
class StapoConfig(Knobs, section="stapo"):
    """Knobs of `stapo` (Liu et al. 2026, arXiv 2602.15620)."""

    probability: float = knob(0.002, "Probability below which a praised token may be silenced.", SHARE)
    fraction: float = knob(0.2, "Share of a group's tokens, with the highest entropy, that are never silenced.", _PART)


@described("weights that grow with the token's probability", needs="log_probs", title="Adv. reweighting")
@dataclass(frozen=True)
class ArConfig(Knobs, section="ar"):
    """Knobs of `ar` (Yang et al. 2025, arXiv 2505.12929)."""

    alpha: float = knob(0.1, "What a token of probability 0 weighs less than one of probability 1.", SHARE)


@described("more praise for unlikely tokens, more blame for likely ones", needs="log_probs", title="A3PO without decay")
@dataclass(frozen=True)
class A3PoConfig(Knobs, section="a3po"):
    """Knobs of `a3po` (Tang et al. 2025, arXiv 2512.21625)."""

    share: float = knob(0.2, "Share of a rollout's tokens that are praised or blamed more.", _PART)
    praise: float = knob(2.0, "Factor of praise for the least likely tokens.", NOT_NEGATIVE)
    blame: float = knob(2.0, "Factor of blame for the most likely tokens.", NOT_NEGATIVE)


@described("its own advantages: the outcome alone, with little praise", kind="advantages", title="W-REINFORCE")
@dataclass(frozen=True)
class WReinforceConfig(Knobs, section="w_reinforce"):
    """Knobs of `w_reinforce` (Zhu et al. 2025, arXiv 2506.01347)."""

    positive: float = knob(0.1, "Advantage of a correct rollout's tokens.", NOT_NEGATIVE)
    negative: float = knob(1.0, "Blame of an incorrect rollout's tokens.", NOT_NEGATIVE)


@described(
    "its own advantages, from rewards that tokens share by entropy", needs="entropies", kind="advantages", title="GTPO"
)
@dataclass(frozen=True)
class GtpoConfig(Knobs, section="gtpo"):
    """Knobs of `gtpo` (Tan et al. 2025, arXiv 2508.04349)."""

    alpha1: float = knob(1.0, "Reward of each token for the rollout's outcome.", POSITIVE)
    alpha2: float = knob(0.1, "Mean reward of a token for its entropy, beside alpha1.", NOT_NEGATIVE)
    normalize: str = knob(
        "together",
        "Tokens that share a mean and deviation: all of a group, or those of correct and incorrect rollouts apart, "
        "where the outcome cancels.",
        ("together", "apart"),
    )


@described(
    "its own advantages: GRPO's plus how much a token goes with right answers",
    needs="token_ids",
    kind="advantages",
    title="KTAE",
)
@dataclass(frozen=True)
class KtaeConfig(Knobs, section="ktae"):
    """Knobs of `ktae` (Sun et al. 2025, arXiv 2505.16826)."""

    frequency: float = knob(1.0, "Weight of term frequencies in the association's direction.", NOT_NEGATIVE)
    scale: float = knob(1.0, "Limit of what is added to a token's advantage.", POSITIVE)


describe(
    "prm_reshape",
    "weights from a process reward model's score of the token's step",
    needs="prm_scores",
    title="PRM(Reshape adv.)",
    ink="green",
)


@described(
    "its own advantages, from the worst step by a process reward model",
    needs="prm_scores",
    kind="advantages",
    title="PRM(PURE)",
    ink="purple",
)
@dataclass(frozen=True)
class PureConfig(Knobs, section="pure"):
    """Knobs of `pure` (Cheng et al. 2025, arXiv 2504.15275)."""

    temperature: float = knob(0.1, "T of the softmax that puts a rollout's credit on its worst step.", POSITIVE)
    verifiable_coef: float = knob(1.0, "Factor of the verifiable reward at the last token.", NOT_NEGATIVE)
    width: int | None = knob(
        None,
        "Tokens over which the baseline averages a rollout's returns. Unset: --rollout.max_new_tokens, to which the "
        "authors' code pads; if that is unset too, the length of the group's longest response.",
        Range(1, remedy="e.g. 3072, or leave it out"),
        fallback="rollout.max_new_tokens",
    )


@described(
    "its own advantages: credit for a wrong rollout up to its first wrong step, by a process reward model",
    needs="prm_scores",
    kind="advantages",
    title="PRM(VPPO)",
)
@dataclass(frozen=True)
class VppoConfig(Knobs, section="vppo"):
    """Knobs of `vppo` (Liu et al. 2026, arXiv 2601.18984)."""

    alpha: float = knob(0.5, "Reward of the tokens before an incorrect rollout's first wrong step.", SHARE)
    threshold: float = knob(0.8, "Probability of being right below which a step is wrong.", SHARE)
    shorten: float = knob(0.1, "Share of the response that is cut off the end of these tokens.", SHARE)
    relu: bool = knob(False, "Never blame these tokens.")


describe(
    "shear", "weights from the hidden states", needs="hidden_states", title="SHEAR", ink="blue", config=ShearConfig
)
describe(
    "text",
    "SHEAR's weights from n-grams of the text in place of hidden states: its control",
    needs="token_ids",
    title="SHEAR on n-grams",
    ink="brown",
    config=TextConfig,
)
describe(
    "error_odds",
    "blame for the tokens that may be the first error: surprising where the policy was sure",
    needs="log_probs entropies hidden_states",
    config=ErrorOddsConfig,
)


@described(
    "its own advantages: rewards less a baseline at each place, weighted by how unsure rollouts were",
    needs="source_states lm_head token_ids",
    kind="advantages",
    title="OTB",
)
@dataclass(frozen=True)
class OtbConfig(Knobs, section="otb"):
    """Knobs of `otb` (Li et al. 2026, arXiv 2602.07078)."""

    tail: str = knob(
        "zero",
        "Baseline of tokens at a place that no other rollout has: zero (verl's), or the rollout's own reward, as the "
        "formula gives, so that they learn nothing.",
        ("zero", "own"),
    )


@described(
    "weights from how much a token's gradient looks like its own side's", needs="source_states log_probs", title="DelTA"
)
@dataclass(frozen=True)
class DeltaConfig(Knobs, section="delta"):
    """Knobs of `delta` (Zhang et al. 2026, arXiv 2605.21467)."""

    low: float = knob(0.8, "Weight of a token that looks like the other side, before scaling to mean 1.", POSITIVE)
    high: float = knob(1.2, "Weight of a token that looks like its own side, before scaling; at least low.", POSITIVE)
    rounds: int = knob(1, "Rounds in which the centroids are made anew from tokens near their own side.", NOT_NEGATIVE)

    def conflicts(self) -> Iterator[Refusal]:
        if self.high < self.low:
            yield self.refusal("high", "must be at least delta.low", "e.g. 1.2")


@described(
    "less blame for tokens whose blame would make correct rollouts less likely",
    needs="source_states lm_head token_ids",
    title="NTHR",
)
@dataclass(frozen=True)
class NthrConfig(Knobs, section="nthr"):
    """Knobs of `nthr` (Deng et al. 2025, arXiv 2505.18830)."""

    beta: float = knob(1.0, "Factor of the threshold above which blame is reduced.", NOT_NEGATIVE)
    eta: float | None = knob(
        None,
        "Factor of the blame above it. Unset: 2 |1/2 - p|, p the group's share of correct rollouts.",
        Range(0, 1, remedy="e.g. 0, or leave it out"),
    )


@described("more to tokens before those that the update makes likelier", needs="log_probs", kind="update", title="FIPO")
@dataclass(frozen=True)
class FipoConfig(Knobs, section="fipo"):
    """Knobs of `fipo` (Ma et al. 2026, arXiv 2603.19835)."""

    half_life: float = knob(32.0, "Tokens over which the weight of a later token's change halves.", POSITIVE)
    clip_low: float = knob(0.0, "Factors are at least 1 minus this.", _BELOW_1)
    clip_high: float = knob(0.2, "Factors are at most 1 plus this.", NOT_NEGATIVE)
    outlier: float = knob(
        10.0,
        "Leave tokens with a larger probability ratio out of all sums; 0, ms-swift's default: leave none out.",
        _RATIO,
    )
    safety: float = knob(
        10.0,
        "Limit the factor to between 0.8 and 1 for blamed tokens with a larger probability ratio; 0: for no token. "
        "ms-swift's default is 4.",
        _RATIO,
    )


@described(
    "its own advantages: GRPO's plus the rise over the reference model, compared step by step",
    needs="log_probs ref_log_probs",
    kind="advantages",
    title="SPRO",
)
@dataclass(frozen=True)
class SproConfig(Knobs, section="spro"):
    """Knobs of `spro` (Fei et al. 2025, arXiv 2507.01551)."""

    beta: float = knob(0.05, "Reward of a token for each nat of log-ratio to the reference model.", POSITIVE)


@described("weights from how much likelier a correct sibling makes the token", needs="log_probs hint_log_probs")
@dataclass(frozen=True)
class RlsdConfig(Knobs, section="rlsd"):
    """Knobs of `rlsd` (arXiv 2604.03128), as in ms-swift."""

    strength: float = knob(0.5, "Share of the reweighted advantage, beside the plain advantage.", SHARE)
    clip: float = knob(0.2, "Weights are 1 minus this to 1 plus this.", _BELOW_1)


@described(
    "its own advantages: how much likelier a correct sibling makes the token",
    needs="log_probs hint_log_probs",
    kind="advantages",
)
@dataclass(frozen=True)
class SdpoConfig(Knobs, section="sdpo"):
    """Knobs of `sdpo` (Hübotter et al. 2026, arXiv 2601.20802)."""

    share: float = knob(1.0, "Share of the hint's advantage; GRPO's advantage has the rest.", _PART)


@described(
    "its own advantages, from the values of prefixes by Monte Carlo", needs="continuations token_ids", kind="advantages"
)
@dataclass(frozen=True)
class VineConfig(Knobs, section="vine"):
    """Knobs of `vine` (Kazemnejad et al. 2024, arXiv 2410.01679)."""

    every: int = knob(32, "Tokens of a step, at whose start a value is estimated.", COUNT)
    samples: int = knob(9, "Continuations for each value.", COUNT)
    whiten: bool = knob(True, "Scale a training step's advantages to mean 0 and variance 1.")
