"""Specification of a run's credit rule: the rule, its knobs, and the settings that rules share."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from openrlhf_shear.config.knobs import COUNT, Knobs, Range, knob
from openrlhf_shear.config.names import RuleName, configured, parse_rule
from openrlhf_shear.config.refusal import Refusal
from openrlhf_shear.config.rules import Traits

CREDIT = "credit"  # the section of flags that every credit rule shares
BACKENDS = ("auto", "torch", "numba", "triton")
SEARCH_BYTES = 2**30  # default of a search on a CPU
WAITING_BYTES = 2**32  # default of waiting groups on a CPU
TRITON_WINDOW = 128  # tokens: the largest block of costs that stays on chip is 128 x 128


@dataclass(frozen=True)
class SearchConfig(Knobs, section=CREDIT):
    """Settings of the span search, for every rule that reads hidden states: they change time and memory, no result."""

    backend: str = knob(
        "auto",
        "Backend of the span search: torch (the reference, any device), numba (CPU), triton (CUDA); auto: the fastest "
        "available.",
        BACKENDS,
    )
    max_cost_bytes: int = knob(
        0,
        "Upper bound on the extra memory of the span search, in bytes; it works in chunks. 0: 1 GiB on a CPU; on CUDA "
        "the largest power of two within a quarter of the memory free at a process's first search.",
        Range(2**20, also=0, remedy="e.g. 1073741824"),
    )
    max_waiting_bytes: int | None = knob(
        None,
        "Upper bound, in bytes on each actor rank, on the hidden states that wait until all ranks finish their forward "
        "passes. Groups that do not fit are weighed in between, while the other ranks wait (0: all groups). Unset: "
        "4 GiB on a CPU; on CUDA half of the memory to spare at the first group, beside what a forward pass needs.",
        Range(0, remedy="e.g. 4294967296, or leave it out"),
    )

    def require_fits(self, window: int) -> None:
        """Raise ValueError if the backend has no room for spans of `window` tokens."""
        if self.backend == "triton" and window > TRITON_WINDOW:
            raise ValueError(
                f"shear.window does not fit on the chip with credit.backend triton: got {window!r}; use at most "
                f"{TRITON_WINDOW}, or credit.backend auto"
            )


@dataclass(frozen=True)
class OutcomeConfig(Knobs, section=CREDIT):
    """Definition of a correct rollout, for every rule."""

    correct_threshold: float = knob(
        0.5, "A rollout counts as correct when its score is at least this (score units).", Range(-math.inf)
    )
    correct_reward: str | None = knob(
        None,
        "Entry of extra_logs that is compared with the threshold in place of the score, where a reward is a sum of "
        "several, e.g. accuracy where a format reward is added.",
    )


@dataclass(frozen=True)
class PrmConfig(Knobs, section="prm"):
    """Process reward model, for the rules that need it, and its placement."""

    model_name_or_path: str | None = knob(
        None, "Process reward model, a folder or hub id in the format of Qwen/Qwen2.5-Math-PRM-7B."
    )
    num_nodes: int = knob(1, "Nodes of the process reward model's actor group.", COUNT)
    num_gpus_per_node: int = knob(
        8, "GPUs per node of its actor group: the policy actor's with --train.colocate_all, others without it.", COUNT
    )
    micro_batch_size: int = knob(8, "Rollouts per forward pass.", COUNT)
    max_len: int = knob(4096, "Tokens of problem and steps that it reads; further steps get no score.", COUNT)
    separator: str = knob("\\n\\n", "Text that ends a step in a response, in ASCII; \\n is a line break.")
    offload: bool = knob(False, "Keep its weights in CPU memory between forward passes (ZeRO-3 offload).")

    def conflicts(self) -> Iterator[Refusal]:
        if not (self.separator.isascii() and self.separator):
            yield self.refusal("separator", "must be ASCII text", r"e.g. \n\n")

    @property
    def step_end(self) -> str:
        return self.separator.replace("\\n", "\n")


@dataclass(frozen=True)
class CreditSpec:
    """Specification of a run's credit rule, from which every worker makes the rule (`credit.registry.load_rule`)."""

    estimator: str  # as in `config.names`; of a built-in rule, the name alone
    config: Any = None  # knobs of a built-in rule, of the class `config` of its entry; None for the defaults
    search: SearchConfig = field(default_factory=SearchConfig)
    outcome: OutcomeConfig = field(default_factory=OutcomeConfig)
    prm: PrmConfig = field(default_factory=PrmConfig)

    @cached_property
    def name(self) -> RuleName:
        return parse_rule(self.estimator)

    @property
    def traits(self) -> Traits | None:
        """Traits of a built-in rule with these knobs; None for a rule from outside."""
        entry = self.name.built_in
        if entry is None:
            return None
        if self.config is None:
            return entry.traits
        return replace(entry.traits, needs=entry.traits.needs - self.config.idle_needs())

    def knobs(self) -> dict:
        """Return a built-in rule's knobs by name, with `search` and `outcome` if it reads hidden states; else {}."""
        entry = self.name.built_in
        if entry is None or entry.config is None:
            return {}
        knobs = asdict(self.config if self.config is not None else entry.config())
        if "hidden_states" not in entry.traits.needs:
            return knobs
        outcome = {name: value for name, value in asdict(self.outcome).items() if value is not None}
        return knobs | {"backend": self.search.backend} | outcome | asdict(self.search)


def credit_spec(
    name: RuleName,
    values: Mapping[str, Any] | None = None,
    search: Mapping[str, Any] | None = None,
    outcome: Mapping[str, Any] | None = None,
    prm: Mapping[str, Any] | None = None,
) -> CreditSpec:
    """Make the spec of a rule. Knobs in `name` come first; the mappings supply others by name, of each class of knobs.

    Raises ValueError: a built-in rule has no such knob, or a value is of another type or out of range.
    """
    entry = name.built_in
    shared: dict[str, Any] = {"outcome": OutcomeConfig(**outcome or {}), "prm": PrmConfig(**prm or {})}
    if entry is None:
        return CreditSpec(name.text, search=SearchConfig(**search or {}), **shared)
    kinds = [entry.config] if entry.config else []
    kinds += [SearchConfig] if "hidden_states" in entry.traits.needs else []
    known = [each.name for kind in kinds for each in fields(kind)]
    if unknown := [each for each in name.knobs if each not in known]:
        if not known:
            raise ValueError(f"{name.rule} has no knobs: got {', '.join(name.knobs)}")
        raise ValueError(f"no knob {unknown[0]}; {name.rule} has {', '.join(known)}")
    config = configured(entry.config, name.knobs, values or {}) if entry.config else None
    return CreditSpec(name.rule, config, configured(SearchConfig, name.knobs, search or {}), **shared)
