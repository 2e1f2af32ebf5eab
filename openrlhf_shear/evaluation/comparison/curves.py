"""Curves of a training run, from its TensorBoard logs."""

import math
from collections.abc import Mapping
from pathlib import Path

REWARD = "train/rollout/reward_mean"
STEP_SECONDS = "train/timing/step_total"
SUITE = "eval/suite/"
SUITE_AVERAGE = f"{SUITE}average"
LOGS = "events.out.tfevents.*"
Curves = dict[str, list[tuple[int, float]]]  # TensorBoard tag -> (step, value)


def read_curves(folder: str | Path) -> Curves:
    """Read the TensorBoard logs under a folder: the newest, and for a resumed run the logs before it.

    Raises FileNotFoundError where there is no log, or no log holds a training step.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logs = sorted(Path(folder).rglob(LOGS), key=_started)
    if not logs:
        raise FileNotFoundError(f"no TensorBoard log under {folder}; was --logger.tensorboard_dir set?")
    curves: Curves = {}
    for path in logs:
        log = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
        curves = continued(curves, {t: [(e.step, e.value) for e in log.Scalars(t)] for t in log.Tags()["scalars"]})
    if REWARD not in curves:
        raise FileNotFoundError(f"{logs[-1]} holds no training step; did the run fail before its first one?")
    return curves


def _started(log: Path) -> tuple[int, str]:
    """Return the seconds in the file's name, `events.out.tfevents.SECONDS.HOST.PID.N`: copies have other times."""
    return int(log.name.split(".")[3]), log.name


def held_out(curves: Mapping[str, object]) -> dict[str, str]:
    """Return the tags of the accuracies on `--eval.dataset`, by the names of its sets."""
    tags = [tag for tag in sorted(curves) if tag.startswith("eval/") and tag.endswith("_pass1")]
    return {tag.removeprefix("eval/eval_").removesuffix("_pass1"): tag for tag in tags}


def continued(before: Curves, after: Curves) -> Curves:
    """Return the curves of a resumed run: the newer log's, behind the older log's points before them.

    A newer log that starts at the beginning replaces the older log; a log without points changes nothing.
    """

    if any(points and points[0][0] == 0 for points in after.values()):
        return {tag: points for tag, points in after.items() if points}

    def first(tag: str) -> float:
        return after[tag][0][0] if after.get(tag) else math.inf

    # A resumed run may begin with the evaluation of the step before its first one.
    older = {tag: [p for p in points if p[0] < min(first(tag), first(REWARD))] for tag, points in before.items()}
    merged = {tag: older.get(tag, []) + after.get(tag, []) for tag in {**older, **after}}
    return {tag: points for tag, points in merged.items() if points}
