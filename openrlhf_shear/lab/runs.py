"""The lab's runs on disk: a call trains the runs that are missing, on all cores or a GPU, and reads the others.

A run is OUTPUT/runs/<settings and start policy>/<rule>/seed000.json. The folders' names end in a digest of everything
that decides the numbers. So one OUTPUT holds many settings, and an edited rule of yours is trained again.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import multiprocessing
import os
import queue
import signal
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from openrlhf_shear.data.writing import write_text
from openrlhf_shear.lab.settings import TRIED, LabSettings
from openrlhf_shear.lab.tasks import task_of
from openrlhf_shear.lab.variants import Variant
from openrlhf_shear.lab.worth import LabRun
from openrlhf_shear.report.provenance import commit, provenance

if TYPE_CHECKING:
    from openrlhf_shear.lab.side_by_side import Together

VERSION = 1  # of a run's computation; runs of other versions are not read
SIDE_BY_SIDE = 16  # most runs of a process at a time, on a GPU
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
    folder = output / "runs" / f"{task_of(settings).place}-steps{settings.steps}-{digest(decides)}"
    places = {variant: _place(folder, variant, settings) for variant in variants}
    return [
        LabJob(settings, variant, seed, start, places[variant] / f"seed{seed:03d}.json")
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

    On a GPU each process trains up to `SIDE_BY_SIDE` runs at a time. Finished runs are kept. If one fails, or on an
    interrupt, unfinished ones are stopped at once. Raises RuntimeError where a run failed: the message names the run,
    and the exception's cause is the error.
    """
    missing = {job.path: job for job in wanted if not job.path.is_file()}  # a rule may have two names
    if missing:
        _train([*missing.values()], workers)
    return [_read(job.path, job.variant) for job in wanted]


def _train(missing: Sequence[LabJob], workers: int) -> None:
    context = multiprocessing.get_context("spawn")
    steps = context.Queue()
    total = sum(job.settings.steps for job in missing)
    left, running = list(reversed(batches(missing, workers))), set()
    with (
        tqdm(total=total, desc=f"{len(missing)} runs", unit="step", smoothing=0.02) as bar,
        ProcessPoolExecutor(min(workers, len(left)), context, _begin_worker, (steps,)) as pool,
    ):
        try:
            while left or running:
                while left and len(running) < workers:  # no more at a time: a submitted job cannot be withdrawn
                    running.add(pool.submit(_run_batch, left.pop()))
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


def batches(missing: Sequence[LabJob], workers: int) -> list[Sequence[LabJob]]:
    """Return the jobs in batches, each for a worker: one job on the CPU, up to `SIDE_BY_SIDE` on a GPU."""
    size = 1 if missing[0].settings.device == "cpu" else min(SIDE_BY_SIDE, -(-len(missing) // workers))
    return [missing[at : at + size] for at in range(0, len(missing), size)]


def _begin_worker(steps: multiprocessing.Queue) -> None:
    global _steps_done
    _steps_done = steps
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent ends the workers
    os.environ["NUMBA_NUM_THREADS"] = "1"
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # products with the same result each time
    import torch

    torch.set_num_threads(1)
    commit()  # that of the code of the runs, whatever is checked out meanwhile


def _step_done() -> None:
    if not multiprocessing.parent_process().is_alive():  # the parent was killed, and nobody else would stop this worker
        os._exit(1)  # an exception would only end the run
    _steps_done.put(1)


def _run_batch(batch: Sequence[LabJob]) -> None:
    if batch[0].settings.device == "cpu":
        return _run(batch[0])
    import torch

    from openrlhf_shear.lab.side_by_side import train_together

    torch.use_deterministic_algorithms(True, warn_only=True)
    train_together([functools.partial(_run, job) for job in batch])


def _run(job: LabJob, together: Together | None = None) -> None:
    from openrlhf_shear.lab.trainer import train

    try:
        run = train(job.settings, job.variant, job.seed, job.start, _step_done, together)
    except Exception as error:
        raise RuntimeError(f"{job.variant.name}, seed {job.seed}: {error}") from error
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
        folder / f"{readable}-{digest(identity)}"
        for identity in (variant.identity(settings), variant.earlier_identity(settings))
    )
    return earlier if earlier.is_dir() and not place.is_dir() else place


def digest(content: object) -> str:
    """Return twelve hexadecimal digits of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:12]
