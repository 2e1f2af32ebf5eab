"""The quick tracks of the credit bench: the setting in which rules are compared on each task."""

from openrlhf_shear.lab.settings import LabSettings

BASELINE = "uniform"
TRACKS = {  # that of bookkeeping has the settings of docs/bookkeeping.md
    "arithmetic": LabSettings(steps=30, eval_problems=384, placement_prompts=16),
    "bookkeeping": LabSettings(
        task="bookkeeping",
        prompts=8,
        steps=20,
        eval_problems=256,
        window=32,
        stride=8,
        epsilon_rel=0.015,
        placement_prompts=16,
    ),
}
