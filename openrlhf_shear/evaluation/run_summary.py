"""A training run at a glance: from its TensorBoard log to `summary.json` and a picture of the curves."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from openrlhf_shear.report.figures import INKS, Picture, Theme, line_style, panels, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
REWARD = "train/rollout/reward_mean"
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
    heldout_before: float | None
    heldout_after: float | None
    heldout_problems: int | None
    credit_share: float | None  # fraction of the step's time, mean over steps
    seconds_per_step: float
    curves: Curves = field(repr=False)


def read_run(tensorboard: str | Path) -> RunSummary:
    """Summarise the TensorBoard logs under a folder: the newest, and for a resumed run the logs before it.

    Raises FileNotFoundError where there is no log, or no log holds a training step.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logs = sorted(Path(tensorboard).rglob(LOGS), key=lambda path: path.stat().st_mtime)
    if not logs:
        raise FileNotFoundError(f"no TensorBoard log under {tensorboard}; was --logger.tensorboard_dir set?")
    curves: Curves = {}
    for path in logs:
        log = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
        curves = continued(curves, {t: [(e.step, e.value) for e in log.Scalars(t)] for t in log.Tags()["scalars"]})
    if REWARD not in curves:
        raise FileNotFoundError(f"{logs[-1]} holds no training step; did the run fail before its first one?")
    return summarize(curves)


def continued(before: Curves, after: Curves) -> Curves:
    """Return the curves of a resumed run: the newer log's, behind the older log's points before them.

    A newer log that starts at the beginning replaces the older log; a log without points changes nothing.
    """

    if any(points and points[0][0] == 0 for points in after.values()):
        return {tag: points for tag, points in after.items() if points}

    def first(tag: str) -> float:
        return after[tag][0][0] if after.get(tag) else math.inf

    # A resumed run may begin with the evaluation of the step before its first one.
    kept = {tag: [p for p in points if p[0] < min(first(tag), first(REWARD))] for tag, points in before.items()}
    merged = {tag: kept.get(tag, []) + after.get(tag, []) for tag in {**kept, **after}}
    return {tag: points for tag, points in merged.items() if points}


def summarize(curves: Curves) -> RunSummary:
    values = {tag: [value for _, value in points] for tag, points in curves.items()}
    rewards = values[REWARD]
    held_out = [tag for tag in sorted(values) if tag.startswith("eval/") and tag.endswith("_pass1")]
    accuracy = next((tag for tag in (*held_out, "eval/suite/average") if tag in values), None)
    evaluated = curves[accuracy] if accuracy else []
    return RunSummary(
        steps=len(rewards),
        reward_first=fmean(rewards[:5]),
        reward_last=fmean(rewards[-5:]),
        heldout_before=next((value for step, value in evaluated if step == 0), None),
        heldout_after=evaluated[-1][1] if evaluated and evaluated[-1][0] > 0 else None,
        heldout_problems=int(values["eval/eval_num_samples"][-1]) if "eval/eval_num_samples" in values else None,
        credit_share=next((fmean(shares) for tag, shares in values.items() if tag.endswith("/credit_share")), None),
        seconds_per_step=fmean(values["train/timing/step_total"]),
        curves=curves,
    )


def write_summary(summary: RunSummary, folder: str | Path, **facts) -> Path:
    """Write `summary.json` (with `facts` about the run, e.g. its seed) and `curves.png`; return the JSON's path."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "summary.json"
    path.write_text(json.dumps({**facts, **asdict(summary)}, indent=1) + "\n")
    (folder / "curves.png").write_bytes(render(_picture(summary.curves), "png"))
    return path


def _picture(curves: Curves) -> Picture:
    held_out = [tag for tag in curves if tag.startswith("eval/") and tag.endswith("_pass1")]
    labels = {tag: tag.removeprefix("eval/eval_").removesuffix("_pass1") for tag in held_out}
    labels |= {tag: tag.removeprefix("eval/suite/") for tag in curves if tag.startswith("eval/suite/")}
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
