"""A training run at a glance: read its TensorBoard log, write `summary.json` and a picture of the curves."""

from __future__ import annotations

import json
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
    """Summarise the newest TensorBoard log under a folder.

    Raises:
        FileNotFoundError: there is no log, or it holds no training step.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logs = sorted(Path(tensorboard).rglob("events.out.tfevents.*"), key=lambda path: path.stat().st_mtime)
    if not logs:
        raise FileNotFoundError(f"no TensorBoard log under {tensorboard}; was --logger.tensorboard_dir set?")
    log = EventAccumulator(str(logs[-1]), size_guidance={"scalars": 0}).Reload()
    curves = {tag: [(e.step, e.value) for e in log.Scalars(tag)] for tag in log.Tags()["scalars"]}
    if REWARD not in curves:
        raise FileNotFoundError(f"{logs[-1]} holds no training step; did the run fail before its first one?")
    return summarize(curves)


def summarize(curves: dict[str, list[tuple[int, float]]]) -> RunSummary:
    """The summary of a run's curves, TensorBoard tag -> (step, value)."""
    values = {tag: [value for _, value in points] for tag, points in curves.items()}
    rewards = values[REWARD]
    accuracy = next((tag for tag in sorted(values) if tag.startswith("eval/") and tag.endswith("_pass1")), None)
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
        credit_share=_mean(values["train/shear/credit_share"]) if "train/shear/credit_share" in values else None,
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
