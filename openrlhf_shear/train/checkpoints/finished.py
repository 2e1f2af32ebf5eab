"""Mark of a finished run, CKPT_PATH/finished.json: the same command then ends before Ray starts.

    {"checkpoint": "global_step8", "num_episodes": 2}

The driver writes it after the model was saved. A run whose model is missing has no mark, so that the same line with
--ckpt.load_enable writes the model.
"""

import json
from contextlib import suppress
from pathlib import Path

from openrlhf_shear.data.writing import write_text
from openrlhf_shear.line.run import ACCEPT_CHANGES, Run
from openrlhf_shear.preflight.resources import has_model
from openrlhf_shear.train.checkpoints import folders

FILE = "finished.json"


def mark(run: Run) -> None:
    """Mark the run as finished at its newest checkpoint; a run without checkpoints gets no mark."""
    folder = Path(run.ckpt.path)
    if tag := folders.find([folder / folders.ACTOR])[0]:
        content = {"checkpoint": tag, "num_episodes": run.train.num_episodes}
        with suppress(OSError):  # a full disk: the next start asks the trainer
            write_text(folder / FILE, json.dumps(content) + "\n")


def nothing_left(run: Run) -> str:
    """Return a line if a resumed run has nothing left to train and its model is there; else ""."""
    folder = Path(run.ckpt.path)
    if not run.ckpt.load_enable or run.flags[ACCEPT_CHANGES] or not has_model(run):
        return ""
    try:
        content = json.loads((folder / FILE).read_text(encoding="utf-8"))
        tag, episodes = content["checkpoint"], content["num_episodes"]
    except (OSError, ValueError, LookupError, TypeError):
        return ""
    if run.train.num_episodes > episodes or tag != folders.find([folder / folders.ACTOR])[0]:
        return ""
    step = folders.step_of(tag)
    model = f"its model is in {run.ckpt.output_dir}"
    return f"nothing left to do: the run finished at step {step}, and {model}; raise --train.num_episodes to continue"
