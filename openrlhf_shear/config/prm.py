"""The process reward model of the rules that need one, and where it runs."""

from __future__ import annotations

from dataclasses import dataclass

from openrlhf_shear.config.knobs import knob, require_all


@dataclass(frozen=True)
class PrmConfig:
    """The process reward model of the rules that need one, and where it runs.

    Raises:
        ValueError: a value is out of its range.
    """

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
        """The separator itself."""
        return self.separator.replace("\\n", "\n")
