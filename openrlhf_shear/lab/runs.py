"""The lab's runs on disk: a call trains the runs that are missing, on all cores, and reads the others.

A run is OUTPUT/runs/<settings and start policy>/<rule>/seed000.json. The folders' names end in a digest of everything
that decides the numbers. So one OUTPUT holds many settings, and an edited rule of yours is trained again.
"""

import hashlib
import itertools
import json
import multiprocessing
import os
import queue
import signal
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from multiprocessing.queues import Queue
from pathlib import Path
from statistics import fmean

from tqdm import tqdm

from openrlhf_shear.data.writing import write_text
from openrlhf_shear.lab.settings import TRIED, LabSettings, Tuning, widened
from openrlhf_shear.lab.tasks import task_of
from openrlhf_shear.lab.variants import Variant
from openrlhf_shear.lab.worth import LabRun
from openrlhf_shear.report.provenance import commit, provenance

VERSION = 1  # of a run's computation; runs of other versions are not read
_POLL_SECONDS = 0.5
_steps_done: Queue | None = None  # set in a worker


@dataclass(frozen=True)
class LabJob:
    """A run that is wanted."""

    settings: LabSettings
    variant: Variant
    seed: int
    start: Path  # folder of the start policy
    path: Path  # of the run's file


def jobs(
    settings: LabSettings,
    variants: Sequence[Variant],
    seeds: Sequence[int],
    start: Path,
    identity: str,
    output: Path,
    rates: Mapping[str, float] = {},
) -> list[LabJob]:
    """Return a job for every seed of every variant, seed by seed, so that an interrupted call leaves pairs.

    Args:
        identity: of the start policy (`policy.fingerprint`).
        rates: learning rates by the variant's name; that of the settings for all others.
    """
    own = {each: replace(settings, learning_rate=rates.get(each.name, settings.learning_rate)) for each in variants}
    places = {variant: output / "runs" / _place(variant, own[variant], identity) for variant in variants}
    return [
        LabJob(own[variant], variant, seed, start, places[variant] / f"seed{seed:03d}.json")
        for seed in seeds
        for variant in variants
    ]


def finished(wanted: Sequence[LabJob]) -> list[LabRun]:
    """Return the finished runs of these rules and settings, under the names of this call.

    They are of all seeds that judge, without those that only tuned or tried something (`TRIED`). If seeds of that kind
    are wanted, they are of that kind.
    """
    kinds = {(job.path.parent, job.variant): None for job in wanted}
    paths = [(path, variant) for folder, variant in kinds for path in sorted(folder.glob("seed*.json"))]
    tried = {job.seed >= TRIED for job in wanted}
    return [run for run in itertools.starmap(_read, paths) if (run.seed >= TRIED) in tried]


def run_all(wanted: Sequence[LabJob], workers: int) -> list[LabRun]:
    """Return all runs; train the missing ones in `workers` processes of one thread each.

    Finished runs are kept. If one fails, or on an interrupt, unfinished ones are stopped at once. Raises RuntimeError
    where a run failed: the message names the run, and the exception's cause is the error.
    """
    missing = {job.path: job for job in wanted if not job.path.is_file()}  # a rule may have two names
    if missing:
        _train([*missing.values()], workers)
    return [_read(job.path, job.variant) for job in wanted]


def _train(missing: Sequence[LabJob], workers: int) -> None:
    context = multiprocessing.get_context("spawn")
    steps = context.Queue()
    total = sum(job.settings.steps for job in missing)
    left, running = list(reversed(missing)), set()
    with (
        tqdm(total=total, desc=f"{len(missing)} runs", unit="step", smoothing=0.02) as bar,
        ProcessPoolExecutor(min(workers, len(left)), context, _begin_worker, (steps,)) as pool,
    ):
        try:
            while left or running:
                while left and len(running) < workers:  # no more at a time: a submitted job cannot be withdrawn
                    running.add(pool.submit(_run, left.pop()))
                done, running = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                bar.update(_count(steps))
                for future in done:
                    error = future.exception()
                    if error is not None:
                        raise RuntimeError(str(error)) from error
            bar.update(_count(steps))
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _begin_worker(steps: Queue) -> None:
    global _steps_done
    _steps_done = steps
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent ends the workers
    os.environ["NUMBA_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    commit()  # that of the code of the runs, whatever is checked out meanwhile


def _step_done() -> None:
    if not multiprocessing.parent_process().is_alive():  # the parent was killed, and nobody else would stop this worker
        os._exit(1)  # an exception would only end the run
    _steps_done.put(1)


def _run(job: LabJob) -> None:
    from openrlhf_shear.lab.policy import fingerprint
    from openrlhf_shear.lab.trainer import train

    try:
        run = train(job.settings, job.variant, job.seed, job.start, _step_done)
    except Exception as error:
        raise RuntimeError(f"{job.variant.name}, seed {job.seed}: {error}") from error
    write_run(job, replace(run, made=provenance()), fingerprint(job.start))


def write_run(job: LabJob, run: LabRun, start: str) -> None:
    """Write a run's file, with all that `jobs` places it by; `start` is the fingerprint of the start policy."""
    content = asdict(run) | {"settings": job.settings.changed(), "start": start}
    job.path.parent.mkdir(parents=True, exist_ok=True)
    write_text(job.path, json.dumps(content) + "\n")


def run_of(content: Mapping, name: str) -> LabRun:
    """Return the run of a file's `content`, under this name of its rule; ValueError for anything else."""
    try:
        metrics = {metric: tuple(values) for metric, values in content["metrics"].items()}
        lists = {measure: tuple(content[measure]) for measure in ("accuracy", "evaluations")}
        facts = {fact: content[fact] for fact in ("seed", "final", "seconds", "made")}
        return LabRun(name, metrics=metrics, **lists, **facts)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it lacks {error}") from error


def _read(path: Path, variant: Variant) -> LabRun:
    try:
        return run_of(json.loads(path.read_text(encoding="utf-8")), variant.name)
    except ValueError as error:
        raise ValueError(f"{path} is no run of the lab ({error}); delete it and start again") from error


def _count(steps: Queue) -> int:
    number = 0
    while True:
        try:
            number += steps.get_nowait()
        except queue.Empty:
            return number


def _place(variant: Variant, settings: LabSettings, identity: str) -> Path:
    """Return the folder of a variant's runs, below that of all runs."""
    decides = {"version": VERSION, "start": identity, "settings": settings.of_a_run() | {"start": None}}
    readable = "+".join(filter(None, (variant.estimator.replace(":", "."), variant.control))).replace("/", "+")
    return (
        Path(f"{task_of(settings).place}-steps{settings.steps}-{digest(decides)}")
        / f"{readable}-{digest(variant.identity(settings))}"
    )


def digest(content: object) -> str:
    """Return twelve hexadecimal digits of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:12]


def tuned(
    trials: Tuning,
    settings: LabSettings,
    variants: Sequence[Variant],
    start: Path,
    identity: str,
    output: Path,
    train: bool,
) -> dict[str, float]:
    """Train what is missing of the tuning, print its scores, and return each rule's best rate by its name.

    Without rates to try, that is the rate of `settings`. Other arguments are as for `runs.jobs`.

    Raises ValueError: runs are missing, and `train` is False.
    """
    if not trials.rates:
        return {variant.name: settings.learning_rate for variant in variants}
    ranges = {variant.name: trials.rates for variant in variants}
    for widenings_left in reversed(range(trials.widen_rates + 1)):
        wanted = [
            job
            for variant in variants
            for rate in ranges[variant.name]
            for job in jobs(replace(settings, learning_rate=rate), [variant], trials.tuning, start, identity, output)
        ]
        missing = sum(not job.path.is_file() for job in wanted)
        if missing and not train:
            raise ValueError(f"the tuning lacks {missing} runs, and this command trains nothing")
        best = best_rates(wanted, run_all(wanted, trials.workers))
        wider = {name: widened(ranges[name], rate) for name, rate in best.items()}
        if not widenings_left or wider == ranges:
            break
        ranges = wider
    for name, rate in best.items():
        tried = ",".join(f"{each:g}" for each in ranges[name])
        print(f"{name}: learning rate {rate:g}, the best of {tried} on {trials.tuning_seeds} seeds")
    return best


def best_rates(wanted: Sequence[LabJob], runs: Iterable[LabRun]) -> dict[str, float]:
    """Return each rule's best rate by its name: that of the largest mean score over the seeds; a tie takes the lower.

    A run's score is the mean of its evaluations or, without evaluations, its mean accuracy over the steps.

    Args:
        wanted: the jobs; `runs` are their results, in the same order.
    """
    scores: dict[str, dict[float, list[float]]] = {}
    for job, run in zip(wanted, runs, strict=True):
        score = run.mean if run.evaluated is None else run.evaluated
        scores.setdefault(job.variant.name, {}).setdefault(job.settings.learning_rate, []).append(score)
    return {name: max(sorted(by), key=lambda rate, by=by: fmean(by[rate])) for name, by in scores.items()}
