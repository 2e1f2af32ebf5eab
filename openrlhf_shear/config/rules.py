"""Table of the built-in credit rules, from which flags, help and reports derive.

A new rule is a file in `credit/rules/`, an entry of `RULES`, and a class in `rule_knobs.py` if it has knobs.
"""

from dataclasses import dataclass

from openrlhf_shear.config.rule_knobs import (
    DeltaConfig,
    EntropyAdvConfig,
    EntropyMaskConfig,
    FipoConfig,
    GtpoConfig,
    KtaeConfig,
    NthrConfig,
    OtbConfig,
    PureConfig,
    RlsdConfig,
    SdpoConfig,
    ShearConfig,
    SproConfig,
    TextConfig,
    VineConfig,
)

LAB_ALONE = ("hint_log_probs", "continuations")  # needs that only the credit lab gives


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
    where: str  # module and class, `openrlhf_shear.credit.rules.shear:ShearRule`
    about: str  # what it does, in a few words, for `--help`
    traits: Traits = Traits()
    config: type | None = None  # dataclass of its knobs, which become flags `--NAME.*`; None for a rule without knobs
    title: str | None = None  # title in reports (default: the name)
    ink: str | None = None  # colour in reports (default: the next unused colour)


_HERE = "openrlhf_shear.credit.rules"
RULES: dict[str, BuiltIn] = {
    rule.name: rule
    for rule in (
        BuiltIn("uniform", f"{_HERE}.uniform:UniformRule", "weights of 1 everywhere (GRPO itself)"),
        BuiltIn(
            "entropy_adv",
            f"{_HERE}.entropy_adv:EntropyAdvRule",
            "adds to the advantages of tokens at which the policy is unsure",
            Traits("update", frozenset({"entropies"})),
            config=EntropyAdvConfig,
            title="Entropy adv.",
            ink="orange",
        ),
        BuiltIn(
            "entropy_mask",
            f"{_HERE}.entropy_mask:EntropyMaskRule",
            "weights of 1 for the group's tokens with the highest entropy, 0 for the others",
            Traits(needs=frozenset({"entropies"})),
            config=EntropyMaskConfig,
            title="Entropy mask",
        ),
        BuiltIn(
            "gtpo",
            f"{_HERE}.gtpo:GtpoRule",
            "its own advantages, from rewards that tokens share by entropy",
            Traits("advantages", frozenset({"entropies"})),
            config=GtpoConfig,
            title="GTPO",
        ),
        BuiltIn(
            "ktae",
            f"{_HERE}.ktae:KtaeRule",
            "its own advantages: GRPO's plus how much a token goes with right answers",
            Traits("advantages", frozenset({"token_ids"})),
            config=KtaeConfig,
            title="KTAE",
        ),
        BuiltIn(
            "prm_reshape",
            f"{_HERE}.prm_reshape:PrmReshapeRule",
            "weights from a process reward model's score of the token's step",
            Traits(needs=frozenset({"prm_scores"})),
            title="PRM(Reshape adv.)",
            ink="green",
        ),
        BuiltIn(
            "pure",
            f"{_HERE}.pure:PureRule",
            "its own advantages, from the worst step by a process reward model",
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
        BuiltIn(
            "text",
            f"{_HERE}.text:TextRule",
            "SHEAR's weights from n-grams of the text in place of hidden states: its control",
            Traits(needs=frozenset({"token_ids"})),
            config=TextConfig,
            title="SHEAR on n-grams",
            ink="brown",
        ),
        BuiltIn(
            "otb",
            f"{_HERE}.otb:OtbRule",
            "its own advantages: rewards less a baseline at each place, weighted by how unsure rollouts were",
            Traits("advantages", frozenset({"source_states", "lm_head", "token_ids"})),
            config=OtbConfig,
            title="OTB",
        ),
        BuiltIn(
            "delta",
            f"{_HERE}.delta:DeltaRule",
            "weights from how much a token's gradient looks like its own side's",
            Traits(needs=frozenset({"source_states", "log_probs"})),
            config=DeltaConfig,
            title="DelTA",
        ),
        BuiltIn(
            "nthr",
            f"{_HERE}.nthr:NthrRule",
            "less blame for tokens whose blame would make correct rollouts less likely",
            Traits(needs=frozenset({"source_states", "lm_head", "token_ids"})),
            config=NthrConfig,
            title="NTHR",
        ),
        BuiltIn(
            "fipo",
            f"{_HERE}.fipo:FipoRule",
            "more to tokens before those that the update makes likelier",
            Traits("update", frozenset({"log_probs"})),
            config=FipoConfig,
            title="FIPO",
        ),
        BuiltIn(
            "spro",
            f"{_HERE}.spro:SproRule",
            "its own advantages: GRPO's plus the rise over the reference model, compared step by step",
            Traits("advantages", frozenset({"log_probs", "ref_log_probs"})),
            config=SproConfig,
            title="SPRO",
        ),
        BuiltIn(
            "rlsd",
            f"{_HERE}.rlsd:RlsdRule",
            "weights from how much likelier a correct sibling makes the token",
            Traits(needs=frozenset({"log_probs", "hint_log_probs"})),
            config=RlsdConfig,
        ),
        BuiltIn(
            "sdpo",
            f"{_HERE}.sdpo:SdpoRule",
            "its own advantages: how much likelier a correct sibling makes the token",
            Traits("advantages", frozenset({"log_probs", "hint_log_probs"})),
            config=SdpoConfig,
        ),
        BuiltIn(
            "vine",
            f"{_HERE}.vine:VineRule",
            "its own advantages, from the values of prefixes by Monte Carlo",
            Traits("advantages", frozenset({"continuations", "token_ids"})),
            config=VineConfig,
        ),
    )
}
