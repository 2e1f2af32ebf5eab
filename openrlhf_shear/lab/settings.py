"""All settings of the lab's task and of its trainer."""

from collections.abc import Iterator
from dataclasses import dataclass

from openrlhf_shear.config.knobs import COUNT, POSITIVE, Knobs, Range, knob
from openrlhf_shear.config.refusal import Refusal

SHIPPED = "shipped"
TRIED = 900  # seeds from here on tune learning rates and try new rules; they judge nothing
TASKS = ("arithmetic", "bookkeeping", "bookkeeping-paraphrased")
# These do not decide a run without its rule: the first three are knobs of rules, the last is of the placement.
_NOT_OF_A_RUN = ("window", "stride", "epsilon_rel", "placement_prompts")


@dataclass(frozen=True)
class LabSettings(Knobs, section="lab"):
    """The setting in which every rule is tried.

    Batch, learning rate and clipping default to those of `examples/scripts/train_shear_arithmetic.sh`. Unlike that
    script, the lab needs no correction between sampler and trainer: they are the same model here. Raises ValueError
    where a value is out of its range.
    """

    task: str = knob(
        TASKS[0],
        "The policy's task: chain arithmetic, or keeping the books of a story in one wording or in many.",
        TASKS,
    )
    operations: int = knob(7, "Arithmetic steps of a problem; the shipped start policy knows 7.", Range(2, 12))
    start: str = knob(
        SHIPPED,
        "Start policy: shipped, or a folder from openrlhf_shear.cli.warm_up.",
    )
    prompts: int = knob(16, "Problems a training step.", COUNT)
    samples_per_prompt: int = knob(
        8, "Rollouts a problem: the group size.", Range(2, remedy="e.g. 8: groups are compared")
    )
    steps: int = knob(60, "Training steps.", COUNT)
    mini_batches: int = knob(2, "Updates a step; each reads an equal part of the step's rollouts.", COUNT)
    learning_rate: float = knob(
        1e-4, "AdamW's, constant; betas 0.9 and 0.95, no weight decay, as in OpenRLHF.", POSITIVE
    )
    clip_low: float = knob(0.2, "The ratio is clipped to at least 1 minus this.", POSITIVE)
    clip_high: float = knob(0.28, "The ratio is clipped to at most 1 plus this.", POSITIVE)
    max_grad_norm: float = knob(1.0, "Gradients are clipped to this norm.", POSITIVE)
    eval_problems: int = knob(768, "Held-out problems of the final accuracy.", COUNT)
    eval_samples: int = knob(4, "Responses to each held-out problem.", COUNT)
    eval_every: int = knob(
        0, "Also evaluate after every so many steps of training; 0 for the final accuracy alone.", Range(0)
    )
    eval_temperature: float = knob(
        1.0, "Temperature of the evaluations' responses, e.g. 0.1; training samples at 1.", POSITIVE
    )
    precision: str = knob(
        "bfloat16",
        "Precision of the policy's passes; its weights are updated in float32, as by DeepSpeed.",
        ("bfloat16", "float32"),
    )
    window: int = knob(16, "Span length, in tokens, of rules that measure distances and name no length.", COUNT)
    stride: int = knob(4, "Distance between the starts of their spans, in tokens.", COUNT)
    epsilon_rel: float = knob(0.03, "Their entropic regularisation, in units of the mean hidden-state norm.", POSITIVE)
    placement_prompts: int = knob(64, "Problems whose rollouts by the start policy show where the credit goes.", COUNT)

    def conflicts(self) -> Iterator[Refusal]:
        rollouts = self.prompts * self.samples_per_prompt
        if self.eval_every > self.steps:
            yield self.refusal("eval_every", f"must be 0 to {self.steps}, the steps", "e.g. 5")
        if rollouts % self.mini_batches:
            yield self.refusal("mini_batches", f"must divide {rollouts} rollouts", "e.g. 2")

    def of_a_run(self) -> dict:
        """Return the changed settings that decide a run apart from its rule; `start` is a name, not the content.

        A new setting does not change the identity of runs at its default. If a default changes, raise `runs.VERSION`.
        """
        return {name: value for name, value in self.changed().items() if name not in _NOT_OF_A_RUN}
