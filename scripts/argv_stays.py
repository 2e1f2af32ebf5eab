"""Count how many files a training command passes through on its way from argv to the verdict.

    python scripts/argv_stays.py            # one line of JSON, and a line to read
    python scripts/argv_stays.py --list     # also the stays, in order

It checks one command in this process: SHEAR on a prompt of the built-in arithmetic task, with the task's reward file.
The count starts with `cli.train_ppo_ray.examine` and ends when that returns. Python's imports do not count.

- `files`: files of the package in which a Python frame starts or resumes.
- `stays`: runs of consecutive frames in the same file. A -> B -> A is three stays; ten calls within A are one.

Commit 3778414a has 53 files and 346 stays, and dcffc525 has 51 and 147.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from itertools import groupby
from pathlib import Path

import openrlhf_shear
from openrlhf_shear.cli import train_ppo_ray

PACKAGE = Path(openrlhf_shear.__file__).parent
TASK = PACKAGE / "tasks" / "arithmetic"
FLAGS = {
    "algo.advantage.estimator": "shear",
    "rollout.n_samples_per_prompt": "8",
    "rollout.batch_size": "16",
    "rollout.max_new_tokens": "160",
    "train.batch_size": "64",
    "data.max_len": "256",
    "data.prompt_dataset": "prompts.jsonl",
    "data.input_key": "prompt",
    "data.label_key": "answer",
    "actor.model_name_or_path": str(TASK / "shipped_policy"),
    "reward.remote_url": str(TASK / "arithmetic.py"),
}


def frames_of(argv: list[str]) -> list[tuple[str, str]]:
    """Return (file, function) of every frame of the package that starts or resumes while the command is checked."""
    frames: list[tuple[str, str]] = []

    def note(frame, event: str, _) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(f"{PACKAGE}{os.sep}") and frame.f_code.co_name != "<module>":
            frames.append((os.path.relpath(file, PACKAGE), frame.f_code.co_name))

    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        sys.setprofile(note)
        try:
            train_ppo_ray.examine(argv)
        finally:
            sys.setprofile(None)
    return frames


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print every stay, and the functions that run in it")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("prompts.jsonl").write_text('{"prompt": "54ax3b+87cx9d+55e-63fx3gx3=", "answer": "97"}\n')
        frames = frames_of([word for flag, value in FLAGS.items() for word in (f"--{flag}", value)] + ["--dry_run"])
        os.chdir(PACKAGE)
    stays = [(file, [name for _, name in run]) for file, run in groupby(frames, key=lambda frame: frame[0])]
    for file, names in stays if args.list else ():
        print(f"{file:32} {' '.join(dict.fromkeys(names))[:120]}")
    counts = Counter(file for file, _ in stays)
    print(json.dumps({"files": len(counts), "stays": len(stays), "by_file": dict(counts.most_common())}))
    print(f"{len(counts)} files entered, {len(stays)} stays, from argv to the verdict")


if __name__ == "__main__":
    main()
