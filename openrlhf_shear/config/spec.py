"""Which credit rule a run uses, with everything that it is made of beside the rule's own knobs."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from openrlhf_shear.config.knobs import knob, require_all
from openrlhf_shear.config.names import RuleName, configured, parse_rule

CREDIT = "credit"  # the section of flags that every credit rule shares
BACKENDS = ("auto", "torch", "numba", "triton")
SEARCH_BYTES = 2**30  # of a search on a CPU, where nothing else is asked for
TRITON_WINDOW = 128  # tokens: a block of 128 x 128 costs is what stays on chip


@dataclass(frozen=True)
class SearchConfig:
    """How the span search runs, for every rule that reads hidden states: time and memory, never a result."""

    backend: str = knob(
        "auto",
        "What runs the span search: torch (the reference, any device), numba (CPU), triton (CUDA); auto: the fastest "
        "that is there.",
        BACKENDS,
    )
    max_cost_bytes: int = knob(
        0,
        "Upper bound on the extra memory of the span search, in bytes (>= 1 MiB); it works in chunks. 0: 1 GiB on a "
        "CPU; on CUDA the largest power of two within a quarter of what is free at a process's first search.",
    )
    max_waiting_bytes: int = knob(
        2**32,
        "Upper bound on the hidden states, in bytes on each actor rank, that wait until the forward passes of all "
        "ranks are over; what does not fit is weighed in between, while the other ranks wait (0: all of it).",
    )

    def __post_init__(self):
        enough = self.max_cost_bytes == 0 or self.max_cost_bytes >= 2**20
        least = ("max_cost_bytes", enough, "must be at least 1 MiB, or 0", "e.g. 1073741824")
        waits = ("max_waiting_bytes", self.max_waiting_bytes >= 0, "must be at least 0", "e.g. 4294967296")
        require_all(self, CREDIT, least, waits)

    def require_fits(self, window: int) -> None:
        """ValueError where the backend has no room for spans of `window` tokens."""
        if self.backend == "triton" and window > TRITON_WINDOW:
            raise ValueError(
                f"shear.window does not fit on the chip with credit.backend triton: got {window!r}; use at most "
                f"{TRITON_WINDOW}, or credit.backend auto"
            )


@dataclass(frozen=True)
class OutcomeConfig:
    """What counts as correct, for every rule."""

    correct_threshold: float = knob(0.5, "A rollout counts as correct when its score is at least this (score units).")

    def __post_init__(self):
        finite = math.isfinite(self.correct_threshold)
        require_all(self, CREDIT, ("correct_threshold", finite, "must be finite", "e.g. 0.5"))


@dataclass(frozen=True)
class PrmConfig:
    """The process reward model of the rules that need one, and where it runs."""

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
        return self.separator.replace("\\n", "\n")


@dataclass(frozen=True)
class CreditSpec:
    """Which credit rule a run uses; every worker makes its own from this (`credit.registry.load_rule`)."""

    estimator: str  # as `config.names` has it; of a built-in rule the name alone
    config: object | None = None  # knobs of a built-in rule, of its entry's `config`; None for its defaults
    search: SearchConfig = field(default_factory=SearchConfig)
    outcome: OutcomeConfig = field(default_factory=OutcomeConfig)
    prm: PrmConfig = field(default_factory=PrmConfig)

    @property
    def name(self) -> RuleName:
        return parse_rule(self.estimator)

    def knobs(self) -> dict:
        """Of a built-in rule by name; of one that reads hidden states with `search` and `outcome`. Else empty."""
        entry = self.name.built_in
        if entry is None or entry.config is None:
            return {}
        knobs = asdict(self.config if self.config is not None else entry.config())
        if "hidden_states" not in entry.traits.needs:
            return knobs
        return knobs | {"backend": self.search.backend} | asdict(self.outcome) | asdict(self.search)


def credit_spec(name: RuleName, values: Mapping[str, object], search: SearchConfig, **others) -> CreditSpec:
    """The spec of a name whose own knobs come first; `values` and `search` have those that it may leave out.
    Raises ValueError: a built-in rule has no such knob, or a value is not of its kind or range.
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
