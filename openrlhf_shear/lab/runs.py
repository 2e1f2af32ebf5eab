"""Runs that are kept: what a call asks for and has not got is trained, on all cores; the rest is read.

    OUTPUT/runs/<settings and start policy>/<rule>/seed000.json

A folder's name ends in a digest of all that decides its numbers, so one OUTPUT holds many settings, and a rule of yours
that you edit is trained anew.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import queue
import re
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from openrlhf_shear.lab.records import Run
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.variants import Variant

VERSION = 1  # of what a run computes; other versions' runs are not read
_POLL_SECONDS = 0.5
_steps_done: multiprocessing.Queue | None = None  # in a worker


@dataclass(frozen=True)
class Job:
    """One run to be had."""

    settings: LabSettings
    variant: Variant
    seed: int
    start: Path  # folder of the start policy
    path: Path  # of its file


def jobs(
    settings: LabSettings, variants: Sequence[Variant], seeds: Sequence[int], start: Path, identity: str, output: Path
) -> list[Job]:
    """Every seed of every variant, seed after seed, so that what is there after an interruption is paired.

    Args:
        identity: of the start policy (`start.fingerprint`).
    """
    decides = {"version": VERSION, "start": identity, "settings": settings.of_a_run() | {"start": None}}
    folder = output / "runs" / f"operations{settings.operations}-steps{settings.steps}-{_digest(decides)}"
    places = {variant: folder / _place(variant, settings) for variant in variants}
    return [
        Job(settings, variant, seed, start, places[variant] / f"seed{seed:03d}.json")
        for seed in seeds
        for variant in variants
    ]


def finished(wanted: Sequence[Job]) -> list[Run]:
    """The runs that are there, under the names they have in this call."""
    return [_read(job) for job in wanted if job.path.is_file()]


def run_all(wanted: Sequence[Job], workers: int) -> list[Run]:
    """All runs; those that are not there are trained in so many processes of one thread each.

    What is finished is kept whatever happens to the others.

    Raises:
        RuntimeError: a run failed; the message names it.
    """
    missing = [job for job in wanted if not job.path.is_file()]
    if missing:
        _train(missing, workers)
    return [_read(job) for job in wanted]


def _train(missing: Sequence[Job], workers: int) -> None:
    context = multiprocessing.get_context("spawn")
    steps = context.Queue()
    total = sum(job.settings.steps for job in missing)
    with (
        tqdm(total=total, desc=f"{len(missing)} runs", unit="step", smoothing=0.02) as bar,
        ProcessPoolExecutor(min(workers, len(missing)), context, _begin_worker, (steps,)) as pool,
    ):
        waiting = {pool.submit(_run, job): job for job in missing}
        try:
            while waiting:
                done, _ = wait(waiting, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                bar.update(_count(steps))
                for future in done:
                    job = waiting.pop(future)
                    if future.exception() is not None:
                        what = f"{job.variant.name}, seed {job.seed}"
                        raise RuntimeError(f"{what}: {future.exception()}") from future.exception()
            bar.update(_count(steps))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin_worker(steps: multiprocessing.Queue) -> None:
    global _steps_done
    _steps_done = steps
    os.environ["NUMBA_NUM_THREADS"] = "1"
    import torch
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.disable_progress_bar()  # one for every policy that is loaded


def _run(job: Job) -> None:
    from openrlhf_shear.lab.trainer import train

    run = train(job.settings, job.variant, job.seed, job.start, lambda: _steps_done.put(1))
    facts = {"rule": job.variant.identity(job.settings), "settings": asdict(job.settings)}
    _write(job.path, asdict(run) | {"of": facts})


def _write(path: Path, content: dict) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(content) + "\n", encoding="utf-8")
    partial.replace(path)


def _read(job: Job) -> Run:
    try:
        found = json.loads(job.path.read_text(encoding="utf-8"))
        metrics = {name: tuple(values) for name, values in found["metrics"].items()}
        return Run(job.variant.name, job.seed, tuple(found["accuracy"]), found["final"], metrics, found["seconds"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{job.path} is no run of the lab ({error}); delete it and start again") from error


def _count(steps: multiprocessing.Queue) -> int:
    number = 0
    while True:
        try:
            number += steps.get_nowait()
        except queue.Empty:
            return number


def _place(variant: Variant, settings: LabSettings) -> str:
    readable = re.sub(r"[^A-Za-z0-9_.=-]+", "+", variant.name)[:80]
    return f"{readable}-{_digest(variant.identity(settings))}"


def _digest(content: dict) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:12]
