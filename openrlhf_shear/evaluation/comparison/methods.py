"""What the paper's tables and figures call things: methods, their colours, benchmarks, and what ablations change."""

from __future__ import annotations

from dataclasses import dataclass

from openrlhf_shear.config import RULES, CreditSpec
from openrlhf_shear.config.rules import AGGREGATES, DISTANCES, NORMALIZATIONS, POOLS
from openrlhf_shear.sampling.benchmarks import BENCHMARKS


@dataclass(frozen=True)
class Method:
    """A credit rule in a report; `ink` is None for a rule without a colour of its own."""

    title: str
    ink: str | None = None


# By the rule's name, in the order of the tables.
METHODS = {"grpo": Method("GRPO", "gray")}
METHODS |= {rule.name: Method(rule.title, rule.ink) for rule in RULES.values() if rule.title}
OTHER_INKS = ("orange", "green", "purple", "vermilion", "brown")


def method_of(rule: str) -> Method:
    """That of a rule that is not known here has its name as the title."""
    return METHODS.get(rule, Method(rule))


@dataclass(frozen=True)
class Sweep:
    """What one ablation changes, everything else held; `order` is that of values that have none of their own."""

    heading: str
    knobs: tuple[str, ...]
    order: tuple[str, ...] = ()


SWEEPS = {
    "distance": Sweep("Distance between spans", ("distance",), DISTANCES),
    "normalize": Sweep("Normalisation of the weights", ("normalize",), NORMALIZATIONS),
    "pool": Sweep("Pooling over the spans of a token", ("pool",), POOLS),
    "aggregate": Sweep("Aggregation over opposing spans", ("aggregate",), AGGREGATES),
    "epsilon": Sweep("Entropic regularisation ε", ("epsilon", "epsilon_rel")),
    "span": Sweep("Span length w and stride s", ("window", "stride")),
    "group": Sweep("Group size G", ("group",)),
}
LETTERS = {"group": "G", "window": "w", "stride": "s"}  # of knobs, in the paper
PAPER = CreditSpec("shear").knobs() | {"epsilon": 4.5, "group": 8}
# Benchmarks in the order of the paper's tables, with their titles there.
TITLES = {name: one.title for name, one in BENCHMARKS.items()}
TITLES |= {"olympiadbench": "Olympiad", "livecodebench": "LiveCodeBench"}
