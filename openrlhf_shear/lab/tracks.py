"""The quick tracks of the credit bench: the setting in which rules are compared on each task."""

from dataclasses import replace

from openrlhf_shear.lab.settings import LabSettings

BASELINE = "uniform"
_BOOKKEEPING = LabSettings(  # as in docs/bookkeeping.md
    task="bookkeeping",
    prompts=8,
    steps=20,
    eval_problems=256,
    window=32,
    stride=8,
    epsilon_rel=0.015,
    placement_prompts=16,
)
TRACKS = {
    "arithmetic": LabSettings(steps=30, eval_problems=384, placement_prompts=16),
    "bookkeeping": _BOOKKEEPING,
    "bookkeeping-paraphrased": replace(_BOOKKEEPING, task="bookkeeping-paraphrased"),
}
QUICK = ("arithmetic", "bookkeeping")  # the tasks of a row unless others are asked for
