"""The lab's runs on disk: a call trains the runs that are missing, on all cores, and reads the others.

A run is OUTPUT/runs/<settings and start policy>/<rule>/seed000.json. The folders' names end in a digest of everything
that decides the numbers. So one OUTPUT holds many settings, and an edited rule of yours is trained again.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import queue
import signal
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from openrlhf_shear.data.writing import write_text
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.tasks import task_of
from openrlhf_shear.lab.variants import Variant
from openrlhf_shear.lab.worth import LabRun
from openrlhf_shear.report.provenance import provenance

VERSION = 1  # of a run's computation; runs of other versions are not read
_POLL_SECONDS = 0.5
_steps_done: multiprocessing.Queue | None = None  # set in a worker


@dataclass(frozen=True)
class LabJob:
    """A run that is wanted."""

    settings: LabSettings
    variant: Variant
    seed: int
    start: Path  # folder of the start policy
    path: Path  # of the run's file


def jobs(
    settings: LabSettings, variants: Sequence[Variant], seeds: Sequence[int], start: Path, identity: str, output: Path
) -> list[LabJob]:
    """Return a job for every seed of every variant, seed by seed, so that an interrupted call leaves pairs.

    `identity` is that of the start policy (`policy.fingerprint`).
    """
    decides = {"version": VERSION, "start": identity, "settings": settings.of_a_run() | {"start": None}}
    folder = output / "runs" / f"{task_of(settings).place}-steps{settings.steps}-{_digest(decides)}"
    places = {variant: _place(folder, variant, settings) for variant in variants}
    return [
        LabJob(settings, variant, seed, start, places[variant] / f"seed{seed:03d}.json")
        for seed in seeds
        for variant in variants
    ]


def finished(wanted: Sequence[LabJob]) -> list[LabRun]:
    """Return the finished runs of these rules and settings, of all seeds, under the names of this call."""
    folders = {job.path.parent: job for job in wanted}
    paths = [(path, job) for folder, job in folders.items() for path in sorted(folder.glob("seed*.json"))]
    return [_read(path, job.variant) for path, job in paths]


def run_all(wanted: Sequence[LabJob], workers: int) -> list[LabRun]:
    """Return all runs; train the missing ones in `workers` processes of one thread each.

    Finished runs are kept. If one fails, or on an interrupt, unfinished ones are stopped at once. Raises RuntimeError
    where a run failed: the message names the run, and the exception's cause is the error.
    """
    missing = [job for job in wanted if not job.path.is_file()]
    if missing:
        _train(missing, workers)
    return [_read(job.path, job.variant) for job in wanted]


def _train(missing: Sequence[LabJob], workers: int) -> None:
    context = multiprocessing.get_context("spawn")
    steps = context.Queue()
    total = sum(job.settings.steps for job in missing)
    left, running = list(reversed(missing)), {}
    with (
        tqdm(total=total, desc=f"{len(missing)} runs", unit="step", smoothing=0.02) as bar,
        ProcessPoolExecutor(min(workers, len(missing)), context, _begin_worker, (steps,)) as pool,
    ):
        try:
            while left or running:
                while left and len(running) < workers:  # no more at a time: a submitted job cannot be withdrawn
                    job = left.pop()
                    running[pool.submit(_run, job)] = job
                done, _ = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                bar.update(_count(steps))
                for future in done:
                    job, error = running.pop(future), future.exception()
                    if error is not None:
                        raise RuntimeError(f"{job.variant.name}, seed {job.seed}: {error}") from error
            bar.update(_count(steps))
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _begin_worker(steps: multiprocessing.Queue) -> None:
    global _steps_done
    _steps_done = steps
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent ends the workers
    os.environ["NUMBA_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)


def _step_done() -> None:
    if not multiprocessing.parent_process().is_alive():  # the parent was killed, and nobody else would stop this worker
        os._exit(1)  # an exception would only end the run
    _steps_done.put(1)


def _run(job: LabJob) -> None:
    from openrlhf_shear.lab.trainer import train

    run = train(job.settings, job.variant, job.seed, job.start, _step_done)
    facts = {"rule": job.variant.identity(job.settings), "settings": asdict(job.settings), "made": provenance()}
    kept = {name: value for name, value in asdict(run).items() if name != "made"} | {"of": facts}
    job.path.parent.mkdir(parents=True, exist_ok=True)
    write_text(job.path, json.dumps(kept) + "\n")


def _read(path: Path, variant: Variant) -> LabRun:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        metrics = {name: tuple(values) for name, values in kept["metrics"].items()}
        numbers = kept["seed"], tuple(kept["accuracy"]), kept["final"], metrics, kept["seconds"]
        evaluations = tuple(kept.get("evaluations", ()))  # runs of version 0.1 have none
        return LabRun(variant.name, *numbers, made=kept.get("of", {}).get("made"), evaluations=evaluations)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no run of the lab ({error}); delete it and start again") from error


def _count(steps: multiprocessing.Queue) -> int:
    number = 0
    while True:
        try:
            number += steps.get_nowait()
        except queue.Empty:
            return number


def _place(folder: Path, variant: Variant, settings: LabSettings) -> Path:
    """Return the folder of a variant's runs: that of version 0.1 if it has runs and the newer folder has none."""
    readable = "+".join(filter(None, (variant.estimator.replace(":", "."), variant.control))).replace("/", "+")
    place, earlier = (
        folder / f"{readable}-{_digest(identity)}"
        for identity in (variant.identity(settings), variant.earlier_identity(settings))
    )
    return earlier if earlier.is_dir() and not place.is_dir() else place


def _digest(content: dict) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:12]
