"""Which credit rule a run uses, with everything that it is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from openrlhf_shear.config.knobs import knob, require_all
from openrlhf_shear.config.names import RuleName, configured, parse_rule
from openrlhf_shear.config.prm import PrmConfig
from openrlhf_shear.config.search import SearchConfig


@dataclass(frozen=True)
class OutcomeConfig:
    """What counts as correct, for every rule.

    Raises:
        ValueError: a value is out of its range.
    """

    correct_threshold: float = knob(0.5, "A rollout counts as correct when its score is at least this (score units).")

    def __post_init__(self):
        finite = math.isfinite(self.correct_threshold)
        require_all(self, "shear", ("correct_threshold", finite, "must be finite", "e.g. 0.5"))


@dataclass(frozen=True)
class CreditSpec:
    """Which credit rule a run uses; every worker makes its own from this (`credit.registry.load_rule`).

    Attributes:
        estimator: as `config.names` has it; of a built-in rule the name alone.
        config: knobs of a built-in rule, of its entry's `config`; None for its defaults.
        search: of every rule that reads hidden states.
    """

    estimator: str
    config: object | None = None
    search: SearchConfig = field(default_factory=SearchConfig)
    outcome: OutcomeConfig = field(default_factory=OutcomeConfig)
    prm: PrmConfig = field(default_factory=PrmConfig)

    @property
    def name(self) -> RuleName:
        """The estimator, read."""
        return parse_rule(self.estimator)

    def knobs(self) -> dict:
        """The knobs of a built-in rule by name; of one that reads hidden states with how it searches and what counts
        as correct. Empty for a rule without knobs, and for one from outside, whose name holds them.
        """
        entry = self.name.built_in
        if entry is None or entry.config is None:
            return {}
        knobs = asdict(self.config if self.config is not None else entry.config())
        if "hidden_states" not in entry.traits.needs:
            return knobs
        return knobs | {"backend": self.search.backend} | asdict(self.outcome) | asdict(self.search)


def credit_spec(name: RuleName, values: Mapping[str, object], search: SearchConfig, **others) -> CreditSpec:
    """The spec of a name whose own knobs come first.

    Args:
        values: knobs of a built-in rule that its name may leave out.
        search: likewise, of a rule that reads hidden states.
        others: further fields.

    Raises:
        ValueError: a built-in rule has no such knob, or a value is not of its kind or range.
    """
    entry = name.built_in
    if entry is None:
        return CreditSpec(name.text, search=search, **others)
    kinds = [entry.config] if entry.config else []
    kinds += [SearchConfig] if "hidden_states" in entry.traits.needs else []
    known = [each.name for kind in kinds for each in fields(kind)]
    if unknown := [each for each in name.knobs if each not in known]:
        if not known:
            raise ValueError(f"{name.rule} has no knobs: got {', '.join(name.knobs)}")
        raise ValueError(f"no knob {unknown[0]}; {name.rule} has {', '.join(known)}")
    config = configured(entry.config, name.knobs, values) if entry.config else None
    return CreditSpec(name.rule, config, configured(SearchConfig, name.knobs, asdict(search)), **others)
