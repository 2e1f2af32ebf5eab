"""Reading of a run's folder: its identity (`run.json`), curves and evaluations. A run has one seed.

Curves and evaluations come from TensorBoard, or from an evaluation's results.json and settings.json: one checkpoint
without curves. A run is one method, backbone, task and seed.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from openrlhf_shear.evaluation.estimators import Basis, basis_of
from openrlhf_shear.evaluation.suite import FILE
from openrlhf_shear.sampling.benchmarks import BENCHMARKS

REWARD = "train/rollout/reward_mean"
STEP_SECONDS = "train/timing/step_total"
SUITE = "eval/suite/"
SUITE_AVERAGE = f"{SUITE}average"
LOGS = "events.out.tfevents.*"
Curves = dict[str, list[tuple[int, float]]]  # TensorBoard tag -> (step, value)
UNKNOWN = "-"
FACTS = ("method", "model", "task", "seed", "group", "credit")  # of run.json
# settings of an evaluation that must agree between seeds, for each benchmark; from settings.json
SAMPLING = ("chat", "temperature", "top_p", "max_new_tokens", "max_model_len")


class ReportError(ValueError):
    """A folder cannot be read, or runs do not fit together; the message says which, and the remedy."""


@dataclass(frozen=True)
class Evaluation:
    """The scores of one checkpoint on the benchmarks."""

    step: int | None  # the PPO step, 0 for the base model; None for a results file, which does not hold it
    scores: dict[str, float]  # benchmark -> avg@k, a fraction in [0, 1]; empty if only the average was logged
    average: float  # mean over the benchmarks, a fraction
    bases: dict[str, Basis] = field(default_factory=dict)  # benchmark -> the basis of its score


@dataclass(frozen=True)
class Run:
    """The content of a run's folder; `-` or None for unknown facts, and `notes` about them in words."""

    folder: Path
    method: str = UNKNOWN  # grpo, shear, entropy_adv, ...
    model: str = UNKNOWN
    task: str = UNKNOWN  # math, code
    seed: int | None = None
    group: int | None = None  # rollouts a prompt, the paper's G
    credit: dict | None = None  # the credit rule's knobs
    others: dict = field(default_factory=dict)  # further facts that must agree between the seeds of a table's cell
    evaluations: tuple[Evaluation, ...] = ()  # by step
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict, repr=False)
    seconds_per_step: float | None = None
    notes: tuple[str, ...] = ()

    def curve(self, end: str) -> Sequence[tuple[int, float]]:
        """Return (step, value) of the first TensorBoard tag with this end; empty without one."""
        return next((points for tag, points in self.curves.items() if tag.endswith(end)), ())


def read_run(folder: str | Path) -> Run:
    """Read a run.

    Raises:
        ReportError: the folder is missing, has neither a TensorBoard log nor results.json, or has broken JSON.
        FileNotFoundError: its log holds no training step.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ReportError(f"{folder} is not a folder; name the folders of runs, e.g. runs/shear-*")
    notes: list[str] = []
    logs = list(folder.rglob(LOGS))
    results = _json(folder / "results.json")
    if not logs and results is None:
        raise ReportError(f"{folder} holds neither a TensorBoard log nor results.json; is it the folder of a run?")
    facts = _facts(folder, results is not None, notes)
    curves = read_curves(folder) if logs else {}
    if len(logs) > 1:
        notes.append(f"{len(logs)} TensorBoard logs (resumed?): where they overlap, the newest counts")
    limit = facts["others"].get("max_new_tokens") or facts["others"].get("max_len")
    evaluations = _logged(curves, limit, notes)
    if results is not None and not evaluations:
        evaluations = (_from_results(folder, results, facts, notes),)
    elif results is not None:
        notes.append("results.json is not used: the log holds evaluations at steps")
    if not evaluations:
        notes.append(f"no evaluation on benchmarks ({SUITE}... in the log, or results.json)")
    if facts["task"] == UNKNOWN:
        names = {name for evaluation in evaluations for name in evaluation.scores}
        tasks = {BENCHMARKS[name].task if name in BENCHMARKS else UNKNOWN for name in names}
        facts["task"] = tasks.pop() if len(tasks) == 1 else UNKNOWN
    return Run(
        folder,
        **facts,
        evaluations=evaluations,
        curves=curves,
        seconds_per_step=fmean(value for _, value in curves[STEP_SECONDS]) if STEP_SECONDS in curves else None,
        notes=tuple(notes),
    )


def _json(path: Path) -> dict | None:
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ReportError(f"{path} is not JSON ({error}); is it the file of a run?") from error


def _facts(folder: Path, evaluated: bool, notes: list[str]) -> dict:
    """Return the fields of `Run` that say what was trained."""
    path = folder / FILE
    if not path.exists() and not evaluated:  # training writes it beside its log
        below = sorted(folder.rglob(FILE))
        if len(below) > 1:
            raise ReportError(f"{folder} holds several runs (e.g. {below[0].parent}); name each, e.g. {folder}/*")
        path = below[0] if below else path
    written = _json(path)
    where = f"{FILE} does not say"
    if written is None:
        settings = (_json(folder / "settings.json") or {}) if evaluated else {}
        written = {name: settings.get(name) for name in ("model", "seed")}
        where = f"no {FILE}: unknown are"
    known = {name: written[name] for name in FACTS if written.get(name) is not None}
    missing = [name for name in FACTS if name not in known and name != "credit"]
    if missing:
        notes.append(f"{where} {', '.join(missing)}")
    known["others"] = {name: value for name, value in written.items() if name not in FACTS}
    return {"task": UNKNOWN, **known}


def _logged(curves: Curves, limit: int | None, notes: list[str]) -> tuple[Evaluation, ...]:
    """Return the evaluations at steps, without those that lack a benchmark: their averages are not comparable."""
    series = {
        tag.removeprefix(SUITE): {step: value for step, value in points if math.isfinite(value)}
        for tag, points in curves.items()
        if tag.startswith(SUITE)
    }
    averages, facts = series.pop("average", {}), {tag: dict(points) for tag, points in curves.items()}
    evaluations, partial = [], []
    for step in sorted(set().union(averages, *series.values())):
        scores = {name: values[step] for name, values in series.items() if step in values}
        if len(scores) < len(series):
            partial.append(step)
        else:
            average = averages[step] if step in averages else fmean(scores.values())
            evaluations.append(
                Evaluation(step, scores, average, {n: _logged_basis(facts, n, step, limit) for n in scores})
            )
    if partial:
        notes.append("left out, as not every benchmark was evaluated: steps " + ", ".join(map(str, partial)))
    return tuple(evaluations)


def _logged_basis(facts: dict[str, dict[int, float]], benchmark: str, step: int, limit: int | None) -> Basis:
    tags = (f"eval/suite_{what}/{benchmark}" for what in ("problems", "truncated_fraction", "no_answer_fraction"))
    problems, truncated, no_answer = (facts.get(tag, {}).get(step) for tag in tags)
    return Basis(None if problems is None else int(problems), limit, truncated, no_answer)


def _from_results(folder: Path, results: dict, facts: dict, notes: list[str]) -> Evaluation:
    """Return the evaluation of a results file; add its tasks and sampling to `facts`."""
    rows = results.get("benchmarks") if isinstance(results, dict) else results
    if not isinstance(rows, dict) or not all(isinstance(row, dict) and "k" in row for row in rows.values()):
        raise ReportError(f"{folder}/results.json must hold benchmarks, each with its k: got {rows!r}")
    averages = {name: row.get(f"avg@{row['k']}") for name, row in rows.items()}
    scores = {name: value for name, value in averages.items() if value is not None}
    if absent := [name for name in averages if name not in scores]:
        notes.append(f"no avg@k of {', '.join(absent)}")
    if not scores:
        raise ReportError(f"{folder}/results.json holds no avg@k; did the evaluation end?")
    settings = _json(folder / "settings.json") or {}
    sampling = {name: settings[name] for name in SAMPLING if name in settings}
    if settings:
        sampling["template"] = settings.get("template")  # only there if one was given
    if graded := _json(folder / "grading.json"):
        sampling["answer_format"] = graded.get("answer_format")
    for name, row in rows.items():
        facts["others"] |= {f"{what} of {name}": value for what, value in {**sampling, "k": row["k"]}.items()}
    if facts["task"] == UNKNOWN:
        facts["task"] = " + ".join(dict.fromkeys(str(row["task"]) for row in rows.values() if "task" in row)) or UNKNOWN
    limit = settings.get("max_new_tokens")
    return Evaluation(None, scores, fmean(scores.values()), {name: basis_of(rows[name], limit) for name in scores})


def joined(runs: Iterable[Run]) -> list[Run]:
    """Join the runs of a variant and seed that evaluate different benchmarks into one run."""
    by_seed: dict[int | None, list[Run]] = {}
    for run in runs:
        by_seed.setdefault(run.seed, []).append(run)
    return [run for same in by_seed.values() for run in _joined(same)]


def _joined(runs: list[Run]) -> list[Run]:
    evaluations = [evaluation for run in runs for evaluation in run.evaluations]
    scores = {name: value for evaluation in evaluations for name, value in evaluation.scores.items()}
    results_alone = len(evaluations) == len(runs) and all(evaluation.step is None for evaluation in evaluations)
    twice = len(scores) < sum(len(evaluation.scores) for evaluation in evaluations)
    if len(runs) == 1 or not results_alone or twice or runs[0].model == UNKNOWN:
        return runs
    bases = {name: basis for evaluation in evaluations for name, basis in evaluation.bases.items()}
    others = {name: value for run in runs for name, value in run.others.items()}
    return [replace(runs[0], others=others, evaluations=(Evaluation(None, scores, fmean(scores.values()), bases),))]


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
