"""A training run at a glance: read its TensorBoard log, write `summary.json` and a picture of the curves."""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean

REWARD = "train/rollout/reward_mean"
LOGS = "events.out.tfevents.*"
Curves = dict[str, list[tuple[int, float]]]  # TensorBoard tag -> (step, value)
# panels of the picture: title, then TensorBoard tag -> label of its curves
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
    """What a run came to. Accuracies are fractions in [0, 1]; the held-out ones are None without an evaluation."""

    steps: int
    reward_first: float  # mean rollout reward of the first five steps
    reward_last: float  # and of the last five
    heldout_before: float | None
    heldout_after: float | None
    heldout_problems: int | None
    credit_share: float | None  # of the step's time, mean over steps
    seconds_per_step: float
    curves: Curves = field(repr=False)


def read_run(tensorboard: str | Path) -> RunSummary:
    """Summarise the TensorBoard logs under a folder: the newest, and of a run that was resumed those before it.
    FileNotFoundError where there is no log, or none holds a training step.
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
    """The curves of a run that went on from a checkpoint: the newer log's, after what the older one has before them.

    A newer log that starts at the beginning replaces the older one; one without a point changes nothing.
    """
    first = min((points[0][0] for points in after.values() if points), default=math.inf)
    kept = {tag: [point for point in points if point[0] < first] for tag, points in before.items()}
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
    """Write `summary.json` (with `facts` about the run, e.g. its seed) and `curves.png`; returns the JSON's path."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "summary.json"
    path.write_text(json.dumps({**facts, **asdict(summary)}, indent=1) + "\n")
    _draw(summary, folder / "curves.png")
    return path


def _draw(summary: RunSummary, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    held_out = [tag for tag in summary.curves if tag.startswith("eval/") and tag.endswith("_pass1")]
    labels = {tag: tag.removeprefix("eval/eval_").removesuffix("_pass1") for tag in held_out}
    labels |= {tag: tag.removeprefix("eval/suite/") for tag in summary.curves if tag.startswith("eval/suite/")}
    panels = {"Held-out accuracy": labels, **PANELS}
    panels = {title: {tag: of[tag] for tag in of if tag in summary.curves} for title, of in panels.items()}
    panels = {title: curves for title, curves in panels.items() if curves}
    columns = 3
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(5 * columns, 3.2 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, (title, curves) in zip(axes.flat, panels.items(), strict=False):
        for tag, label in curves.items():
            axis.plot(*zip(*summary.curves[tag], strict=True), label=label, marker="o", markersize=2.5)
        axis.set(title=title, xlabel="PPO step")
        axis.grid(alpha=0.3)
        if len(curves) > 1:
            axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
