"""The table of what changed in each run: every measure at the start and at the end of training."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from openrlhf_shear.evaluation.comparison.curves import REWARD, SUITE_AVERAGE, held_out
from openrlhf_shear.evaluation.comparison.runs import Run
from openrlhf_shear.report.tables import Table

STEPS = 5  # steps of a mean at the start and at the end


@dataclass(frozen=True)
class Measure:
    """A column: its title, the end of its TensorBoard tag, and how its values are written."""

    title: str
    tag: str
    scale: float
    form: str
    evaluated: bool = False  # each value is an evaluation; else each step has a value


MEASURES = (
    Measure("Reward", REWARD, 1, ".3f"),
    Measure("Benchmark average (%)", SUITE_AVERAGE, 100, ".1f", evaluated=True),
    Measure("Tokens of a response", "train/rollout/response_length_mean", 1, ".0f"),
    Measure("Mixed groups (%)", "/mixed_groups", 100, ".0f"),
    Measure("Norm of the gradient", "train/actor_grad_norm", 1, ".3g"),
)


def progress(runs: Iterable[Run]) -> Table | None:
    """Return a row for each run that was trained, with "first → last" for each measure; None without such a run."""
    trained = [run for run in runs if run.curves]
    if not trained:
        return None
    sets = {name: tag for run in trained for name, tag in held_out(run.curves).items()}
    accuracies = [
        Measure(f"Held-out accuracy, {name} (%)", sets[name], 100, ".1f", evaluated=True) for name in sorted(sets)
    ]
    measures = [MEASURES[0], *accuracies, *MEASURES[1:]]
    points = [[_points(run, measure) for measure in measures] for run in trained]
    shown = [at for at in range(len(measures)) if any(of[at] for of in points)]
    rows = [
        (run.folder, len(of[0]), *(_ends([value for _, value in of[at]], measures[at]) for at in shown))
        for run, of in zip(trained, points, strict=True)
    ]
    header = ("Run", "Steps", *(measures[at].title for at in shown))
    note = (
        f"First → last: means of the first and of the last {STEPS} steps (of half the steps, if a run has fewer than "
        f"{2 * STEPS}); an accuracy and a benchmark average are those of the first and of the last evaluation."
    )
    return Table("First and last", header, rows, (note,))


def _points(run: Run, measure: Measure) -> Sequence[tuple[int, float]]:
    return next((points for tag, points in run.curves.items() if tag.endswith(measure.tag)), ())


def _ends(values: Sequence[float], measure: Measure) -> str:
    """Return "first → last"; a single value alone, and "-" without any.

    >>> _ends([0.25, 0.75], Measure("", "", 100, ".0f"))
    '25 → 75'
    """
    if not values:
        return "-"
    count = 1 if measure.evaluated else max(1, min(STEPS, len(values) // 2))
    ends = [fmean(values[:count]), fmean(values[-count:])][: len(values)]
    return " → ".join(format(measure.scale * end, measure.form) for end in ends)
