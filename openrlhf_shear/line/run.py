"""A run as its command line describes it: every flag, and what follows from flags alone. Nothing changes it.

run.vllm.num_engines          a flag, by the name that it has in OpenRLHF's own code
    run.flags["vllm.num_engines"]  the same flag, where its name is computed
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType, SimpleNamespace

from openrlhf_shear.config import CreditSpec
from openrlhf_shear.config.names import is_rule
from openrlhf_shear.config.rules import Traits
from openrlhf_shear.config.shear import SpanCut

INSTALL = "use scripts/install_cluster.sh, or on a CPU machine scripts/setup_cpu.sh (docs/install.md)"
ESTIMATOR = "algo.advantage.estimator"
REWARD = "reward.remote_url"
OF_GROUPS = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")  # OpenRLHF's that compare rollouts of a prompt
ACCEPT_CHANGES = "ckpt.accept_changes"
MAY_CHANGE = {  # topics of that flag, with the effect of a change
    "data": "the current episode starts again from its first prompt: no prompt is left out, some are trained on twice",
    "seed": "the same as for data, in the order of the new seed",
    "rule": "later steps use the new credit rule",
    "batch": "later steps have the new sizes, and the learning rate's schedule has another length",
    "model": "training goes on with the checkpoint's weights, and the new model's reference, tokenizer and settings",
}
_MODELS = ("actor", "ref", "critic", "reward", "prm")


def used_models(flags: Mapping[str, object]) -> list[str]:
    """Return the models that a run places on GPUs, the actor first."""
    graded = flags[REWARD] or flags["train.agent_func_path"]
    used = {"actor": True, "ref": True, "critic": flags[ESTIMATOR] == "gae", "reward": not graded}
    return [model for model, is_used in used.items() if is_used]


def placement_flags(flags: Mapping[str, object]) -> list[str]:
    """Return the flags of the nodes and GPUs of all models that a run uses."""
    return [f"{model}.{name}" for model in used_models(flags) for name in ("num_nodes", "num_gpus_per_node")]


class Section(SimpleNamespace):
    """Flags of a part of the command line, as attributes that cannot be set."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"the description of a run does not change: {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"the description of a run does not change: {name}")


class Run(Section):
    """Description of a run. Its flags are attributes, in sections by the dots in their names."""

    flags: Mapping[str, object]  # every flag by its dotted name
    set_flags: frozenset[str]  # the flags that the command line sets
    estimator: str  # as the command line names it, with knobs behind its name
    has_rule: bool  # the estimator is a credit rule rather than OpenRLHF's
    spec: CreditSpec | None  # the credit rule; None without one, or if it cannot be made
    traits: Traits  # of the credit rule; without a rule it has no needs
    spans: SpanCut | None  # of a credit rule that searches spans
    graded: bool  # rewards come from code or a service rather than from a reward model
    ranks: Mapping[str, int]  # by model, its nodes times the GPUs of each

    def __init__(
        self,
        flags: Mapping[str, object],
        set_flags: Collection[str] = (),
        spec: CreditSpec | None = None,
        traits: Traits | None = None,
        spans: SpanCut | None = None,
    ) -> None:
        sizes = {model: (f"{model}.num_nodes", f"{model}.num_gpus_per_node") for model in _MODELS}
        ranks = {model: flags[nodes] * flags[gpus] for model, (nodes, gpus) in sizes.items() if nodes in flags}
        super().__init__(
            **_tree(flags),
            flags=MappingProxyType(dict(flags)),
            set_flags=frozenset(set_flags),
            estimator=flags.get(ESTIMATOR, ""),
            has_rule=spec is not None or is_rule(flags.get(ESTIMATOR, "")),
            spec=spec,
            traits=traits or Traits(),
            spans=spans,
            graded=bool(flags.get(REWARD) or flags.get("train.agent_func_path")),
            ranks=MappingProxyType(ranks),
        )

    def with_flags(self, flags: Mapping[str, object]) -> "Run":
        """Return a description with other values of some flags."""
        return Run({**self.flags, **flags}, self.set_flags, self.spec, self.traits, self.spans)


def _tree(flags: Mapping[str, object]) -> dict[str, object]:
    """Return flags nested by the dots in their names, each level a `Section`."""
    tree: dict[str, object] = {}
    sections: dict[str, dict[str, object]] = {}
    for flag, value in flags.items():
        section, dot, name = flag.partition(".")
        if dot:
            sections.setdefault(section, {})[name] = value
        else:
            tree[flag] = value
    return tree | {section: Section(**_tree(inner)) for section, inner in sections.items()}
