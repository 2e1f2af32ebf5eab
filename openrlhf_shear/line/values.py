"""Names and helpers that all readers of a command line share."""

from typing import Any

Values = dict[str, Any]
"""Parsed flags by dotted name."""

INSTALL = "use scripts/install_cluster.sh, or on a CPU machine scripts/setup_cpu.sh (docs/install.md)"
FORCE = "--force_openrlhf_version"
ESTIMATOR = "algo.advantage.estimator"
OF_GROUPS = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")  # OpenRLHF's that compare rollouts of a prompt
REWARD = "reward.remote_url"


def graded(values: Values) -> bool:
    """Return whether rewards come from code or a service rather than from a reward model."""
    return bool(values["reward.remote_url"] or values["train.agent_func_path"])


def world(values: Values, model: str) -> int:
    """Return the number of a model's ranks: its nodes times the GPUs of each."""
    return values[f"{model}.num_nodes"] * values[f"{model}.num_gpus_per_node"]
