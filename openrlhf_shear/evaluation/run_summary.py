"""A training run at a glance: from its TensorBoard log to `summary.json` and a picture of the curves."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from openrlhf_shear.data.writing import write_text
from openrlhf_shear.report.figures import INKS, Picture, Theme, line_style, panels, render
from openrlhf_shear.report.findings import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
REWARD = "train/rollout/reward_mean"
STEP_SECONDS = "train/timing/step_total"
SUITE = "eval/suite/"
SUITE_AVERAGE = f"{SUITE}average"
LOGS = "events.out.tfevents.*"
COLUMNS = 2  # of panels
ROW = 2.0  # inches of a row of panels
COLOURS = [ink for ink in INKS if ink != "gray"]
Curves = dict[str, list[tuple[int, float]]]  # TensorBoard tag -> (step, value)
# panels of the picture: title, then TensorBoard tag -> label of its curve
PANELS = {
    "Rollout reward (training)": {REWARD: "mean"},
    "Token weight omega (mixed groups)": {
        "train/shear/omega_correct": "correct rollouts",
        "train/shear/omega_incorrect": "incorrect rollouts",
        "train/shear/omega_mean": "mean",
    },
    "Mixed groups (fraction)": {"train/shear/mixed_groups": ""},
    "KL between vLLM and the actor (nats a token)": {"train/vllm_kl": ""},
    "Seconds a step": {
        "train/timing/generation": "generation",
        "train/timing/make_experience": "experience",
        "train/shear/credit_seconds": "of which credit",
        "train/timing/ppo_train": "PPO update",
        "train/timing/broadcast": "weight sync",
    },
}


@dataclass(frozen=True)
class RunSummary:
    """Results of a run. Accuracies are fractions in [0, 1]; the held-out accuracies are None without an evaluation."""

    steps: int
    reward_first: float  # mean rollout reward of the first five steps
    reward_last: float  # mean rollout reward of the last five steps
    heldout_set: str | None  # the first of several sets
    heldout_before: float | None
    heldout_after: float | None
    heldout_problems: int | None  # samples; None with several sets, as the log has their sum alone
    credit_share: float | None  # fraction of the step's time, mean over steps
    seconds_per_step: float
    curves: Curves = field(repr=False)


def read_run(tensorboard: str | Path) -> RunSummary:
    """Summarise the TensorBoard logs under a folder: the newest, and for a resumed run the logs before it.

    Raises FileNotFoundError where there is no log, or no log holds a training step.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logs = sorted(Path(tensorboard).rglob(LOGS), key=_started)
    if not logs:
        raise FileNotFoundError(f"no TensorBoard log under {tensorboard}; was --logger.tensorboard_dir set?")
    curves: Curves = {}
    for path in logs:
        log = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
        curves = continued(curves, {t: [(e.step, e.value) for e in log.Scalars(t)] for t in log.Tags()["scalars"]})
    if REWARD not in curves:
        raise FileNotFoundError(f"{logs[-1]} holds no training step; did the run fail before its first one?")
    return summarize(curves)


def _started(log: Path) -> tuple[int, str]:
    """Return the seconds in the file's name, `events.out.tfevents.SECONDS.HOST.PID.N`: copies have other times."""
    return int(log.name.split(".")[3]), log.name


def held_out(curves: Mapping[str, object]) -> dict[str, str]:
    """Return the tags of the accuracies on `--eval.dataset`, by the names of its sets."""
    tags = [tag for tag in sorted(curves) if tag.startswith("eval/") and tag.endswith("_pass1")]
    return {tag.removeprefix("eval/eval_").removesuffix("_pass1"): tag for tag in tags}


def before_and_after(evaluated: Sequence[tuple[int, float]]) -> tuple[float | None, float | None]:
    """Return the values before training and of the last evaluation after a step."""
    before = next((value for step, value in evaluated if step == 0), None)
    return before, evaluated[-1][1] if evaluated and evaluated[-1][0] > 0 else None


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


def summarize(curves: Curves) -> RunSummary:
    values = {tag: [value for _, value in points] for tag, points in curves.items()}
    rewards = values[REWARD]
    if STEP_SECONDS not in values:
        raise ValueError(f"the log has no {STEP_SECONDS}; was it written by this fork's training?")
    sets = held_out(curves) or {"suite": SUITE_AVERAGE}
    name, tag = next(iter(sets.items()))
    before, after = before_and_after(curves.get(tag, []))
    counted = len(sets) == 1 and "eval/eval_num_samples" in values
    return RunSummary(
        steps=len(rewards),
        reward_first=fmean(rewards[:5]),
        reward_last=fmean(rewards[-5:]),
        heldout_set=name if tag in curves else None,
        heldout_before=before,
        heldout_after=after,
        heldout_problems=int(values["eval/eval_num_samples"][-1]) if counted else None,
        credit_share=next((fmean(shares) for tag, shares in values.items() if tag.endswith("/credit_share")), None),
        seconds_per_step=fmean(values[STEP_SECONDS]),
        curves=curves,
    )


def write_summary(summary: RunSummary, folder: str | Path, **facts) -> Path:
    """Write `summary.json` (with `facts` about the run, e.g. its seed) and `curves.png`; return the JSON's path."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "summary.json"
    write_text(path, json.dumps(plain({**facts, **asdict(summary)}), indent=1, allow_nan=False) + "\n")
    (folder / "curves.png").write_bytes(render(_picture(summary.curves), "png"))
    return path


def _picture(curves: Curves) -> Picture:
    labels = {tag: name for name, tag in held_out(curves).items()}
    labels |= {tag: tag.removeprefix(SUITE) for tag in curves if tag.startswith(SUITE)}
    known = {"Held-out accuracy": labels, **PANELS}
    known = {title: {tag: of[tag] for tag in of if tag in curves} for title, of in known.items()}
    shown = {title: of for title, of in known.items() if of}

    def plot(axis: Axes, theme: Theme) -> None:
        drawn = panels(axis, list(shown), "PPO step", "", COLUMNS, {}, one_scale=False)
        for panel, of in zip(drawn, shown.values(), strict=True):
            for (tag, label), ink in zip(of.items(), cycle(COLOURS), strict=False):
                steps, values = zip(*curves[tag], strict=True)
                panel.plot(steps, values, label=label, **line_style(theme, ink, len(steps)))
            panel.tick_params(labelbottom=True)  # evaluations are at other steps
            if len(of) > 1:
                panel.legend(fontsize=6)

    return Picture("curves", "", "", "", (), (), plot, height=ROW * -(-len(shown) // COLUMNS))
