"""A training run at a glance: read its TensorBoard log, write `summary.json` and a picture of the curves."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

REWARD = "train/rollout/reward_mean"
# panels of the picture: title, then curves as (label, TensorBoard tag)
PANELS = (
    ("Rollout reward (training)", (("mean", REWARD),)),
    (
        "Token weight omega (mixed groups)",
        (
            ("correct rollouts", "train/shear/omega_correct"),
            ("incorrect rollouts", "train/shear/omega_incorrect"),
            ("mean", "train/shear/omega_mean"),
        ),
    ),
    ("Mixed groups (fraction)", (("", "train/shear/mixed_groups"),)),
    ("KL between vLLM and the actor (nats a token)", (("", "train/vllm_kl"),)),
    (
        "Seconds a step",
        (
            ("generation", "train/timing/generation"),
            ("experience", "train/timing/make_experience"),
            ("of which credit", "train/shear/credit_seconds"),
            ("PPO update", "train/timing/ppo_train"),
            ("weight sync", "train/timing/broadcast"),
        ),
    ),
)


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
    curves: dict[str, list[tuple[int, float]]] = field(repr=False)  # TensorBoard tag -> (step, value)


def read_run(tensorboard: str | Path) -> RunSummary:
    """Summarise the TensorBoard logs under a folder: the newest, and of a run that was resumed those before it.

    Raises:
        FileNotFoundError: there is no log, or none holds a training step.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logs = sorted(Path(tensorboard).rglob("events.out.tfevents.*"), key=lambda path: path.stat().st_mtime)
    if not logs:
        raise FileNotFoundError(f"no TensorBoard log under {tensorboard}; was --logger.tensorboard_dir set?")
    curves: dict[str, list[tuple[int, float]]] = {}
    for path in logs:
        log = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
        curves = continued(curves, {t: [(e.step, e.value) for e in log.Scalars(t)] for t in log.Tags()["scalars"]})
    if REWARD not in curves:
        raise FileNotFoundError(f"{logs[-1]} holds no training step; did the run fail before its first one?")
    return summarize(curves)


def continued(
    before: dict[str, list[tuple[int, float]]], after: dict[str, list[tuple[int, float]]]
) -> dict[str, list[tuple[int, float]]]:
    """The curves of a run that went on from a checkpoint: the newer log's, after what the older one has before them.

    A newer log that starts at the beginning replaces the older one; one without a point changes nothing.
    """
    starts = [points[0][0] for points in after.values() if points]
    first = min(starts, default=math.inf)
    kept = {tag: [point for point in points if point[0] < first] for tag, points in before.items()}
    merged = {tag: kept.get(tag, []) + after.get(tag, []) for tag in {**kept, **after}}
    return {tag: points for tag, points in merged.items() if points}


def summarize(curves: dict[str, list[tuple[int, float]]]) -> RunSummary:
    """The summary of a run's curves, TensorBoard tag -> (step, value)."""
    values = {tag: [value for _, value in points] for tag, points in curves.items()}
    rewards = values[REWARD]
    held_out = [tag for tag in sorted(values) if tag.startswith("eval/") and tag.endswith("_pass1")]
    accuracy = next((tag for tag in (*held_out, "eval/suite/average") if tag in values), None)
    evaluated = curves[accuracy] if accuracy else []
    before = next((value for step, value in evaluated if step == 0), None)
    after = evaluated[-1][1] if evaluated and evaluated[-1][0] > 0 else None
    return RunSummary(
        steps=len(rewards),
        reward_first=_mean(rewards[:5]),
        reward_last=_mean(rewards[-5:]),
        heldout_before=before,
        heldout_after=after,
        heldout_problems=int(values["eval/eval_num_samples"][-1]) if "eval/eval_num_samples" in values else None,
        credit_share=next((_mean(shares) for tag, shares in values.items() if tag.endswith("/credit_share")), None),
        seconds_per_step=_mean(values["train/timing/step_total"]),
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

    heldout = [
        (tag.removeprefix("eval/eval_").removesuffix("_pass1"), tag)
        for tag in summary.curves
        if tag.startswith("eval/") and tag.endswith("_pass1")
    ]
    heldout += [(tag.removeprefix("eval/suite/"), tag) for tag in summary.curves if tag.startswith("eval/suite/")]
    panels = [("Held-out accuracy", heldout), *PANELS]
    panels = [(title, [c for c in curves if c[1] in summary.curves]) for title, curves in panels]
    panels = [(title, curves) for title, curves in panels if curves]
    columns = 3
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(5 * columns, 3.2 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, (title, curves) in zip(axes.flat, panels, strict=False):
        for label, tag in curves:
            axis.plot(*zip(*summary.curves[tag], strict=True), label=label, marker="o", markersize=2.5)
        axis.set(title=title, xlabel="PPO step")
        axis.grid(alpha=0.3)
        if len(curves) > 1:
            axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
