"""The rows of `faults.py` in which a resource runs out: disks, Ray's temporary folder, limits of the shell."""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fault_jobs import BATCH, METRIC, Bench, Job, Outcome
from fault_ways import Row, broken

from openrlhf_shear.rewards.limits import tasks_of_user

_DISK = 40_000_000
_NOBODY = "65534"
_KEPT = "--{}=-all,+dac_override"  # the right to read this checkout, and none over limits
_UNPRIVILEGED = (
    *("setpriv", "--reuid", _NOBODY, "--regid", _NOBODY, "--clear-groups"),
    *(_KEPT.format(name) for name in ("inh-caps", "ambient-caps", "bounding-set")),
)


@contextlib.contextmanager
def small_disk(folder: Path, taken: int = 28_000_000) -> Iterator[Path]:
    """Yield a file of `taken` bytes on a new tmpfs of 40 MB in `folder`.

    Raises:
        CalledProcessError: mounting is not allowed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", folder], check=True, capture_output=True)
    try:
        (folder / "ballast").write_bytes(bytes(taken))
        yield folder / "ballast"
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def _fill(ballast: Path) -> None:
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def _kept_full(job: Job, ballast: Path, step: int) -> None:
    """Fill the disk after a step and until the job ends, also with what the job frees."""
    job.wait_for(lambda: job.step >= step)
    job.wait_for(lambda: _fill(ballast), every=0.5)


def _said(job: Job, pattern: str) -> str:
    found = re.findall(pattern, job.log)
    return found[-1].replace(str(job.folder), "RUN") if found else "NOTHING SAID"


def disk_full(bench: Bench) -> Outcome:
    """Fill the disk: a checkpoint is 9 MB, so only the first fits until the ballast is deleted."""
    outcome = Outcome("a disk that is full", "at the second save")
    job = bench.job(outcome.name, 5 * BATCH)
    with small_disk(job.folder / "ckpt") as ballast:
        started = time.monotonic()
        job.start()
        job.wait_for(lambda: "no checkpoint of step" in job.log)
        ballast.unlink()
        code = job.finish(outcome)
        outcome.trials, outcome.seconds = 1, [time.monotonic() - started]
        outcome.ends = f"goes on: {_said(job, r'no checkpoint of step [0-9]+: ([^;]*)')}, exit {code}"
        return bench.compare(outcome, job)


def curves_full(bench: Bench) -> Outcome:
    """Fill TensorBoard's disk from the second step on: only the curves may be missing."""
    outcome = Outcome("a disk under TensorBoard that is full", "after the first step")
    job = bench.job(outcome.name, 5 * BATCH)
    with small_disk(job.folder / "tb") as ballast:
        job.start()
        job.wait_for(lambda: job.step >= 1)
        started = time.monotonic()
        _fill(ballast)
        code = job.finish(outcome)
        outcome.trials, outcome.seconds = 1, [time.monotonic() - started]
        said = re.findall(r"(TensorBoard failed: .*?) at step", job.log)
        outcome.ends = f"goes on: {said[0] if said else 'NOTHING SAID'} ({len(said)} times), exit {code}"
        return bench.compare(outcome, job, without=METRIC)


def full_at_the_end(fault: str, when: str, place: str, taken: int, step: int) -> Row:
    """Fill the disk of the run's folder `place` after a step, until the run ends; make room, and start it again."""

    def row(bench: Bench) -> Outcome:
        outcome = Outcome(fault, when)
        shutil.rmtree(bench.folder / outcome.name, ignore_errors=True)
        with small_disk(bench.folder / outcome.name / place, taken) as ballast:
            job = Job(bench.folder / outcome.name, 5 * BATCH)
            job.log_file = bench.folder / f"{outcome.name}.txt"  # as on a terminal
            job.log_file.unlink(missing_ok=True)
            job.start()
            _kept_full(job, ballast, step)
            ended = job.finish(outcome)
            said = _said(job, r"the run ended: (.*)")
            refused = job.run(outcome, "--ckpt.load_enable")
            ballast.unlink()
            code = job.run(outcome, "--ckpt.load_enable")
            outcome.trials = 1
            outcome.ends = f"exit {ended}: {said}; again: exit {refused}; again, with room: exit {code}"
            return bench.compare(outcome, job, without=METRIC)

    return row


def temporary_full(bench: Bench) -> Outcome:
    """Fill the disk of Ray's temporary folder after the first step."""
    outcome = Outcome("a disk of Ray's temporary folder that is full", "after the first step")
    job = bench.job(outcome.name, 5 * BATCH)
    with _short_disk(10_000_000) as ballast:
        job.environment["RAY_TMPDIR"] = str(ballast.parent)
        job.start()
        job.wait_for(lambda: job.step >= 1)
        started = time.monotonic()
        _kept_full(job, ballast, 1)
        code = job.finish(outcome)
        outcome.trials, outcome.seconds = 1, [time.monotonic() - started]
        told = _said(job, r"(the disk of Ray's temporary folder is full) \(RAY_TMPDIR")
        outcome.ends = f"goes on: {told}, exit {code}"
        return bench.compare(outcome, job)


@contextlib.contextmanager
def _short_disk(taken: int) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ray_"))  # a short path: a socket's path has at most 107 characters
    with small_disk(folder, taken) as ballast:
        yield ballast
    shutil.rmtree(folder, ignore_errors=True)


def _without_room(fault: str, made: Callable, point: Callable[[Job, Path], tuple[str, ...]]) -> Row:
    """Start a run beside a disk with 2 MB left; `point` sends the run there, and returns more words for it."""

    def row(bench: Bench) -> Outcome:
        with made(bench) as ballast:
            return broken(fault, "from the start", prepare=lambda job: point(job, ballast.parent))(bench)

    return row


def _use_temporary(job: Job, folder: Path) -> tuple[str, ...]:
    job.environment["RAY_TMPDIR"] = str(folder)
    return ()


def _use_disk(job: Job, folder: Path) -> tuple[str, ...]:
    return "--ckpt.path", str(folder / "ckpt"), "--ckpt.output_dir", str(folder / "model")


def _limited(fault: str, launcher: Callable[[], tuple[str, ...]]) -> Row:
    """Start a run by a launcher that lowers a limit of the shell."""

    def prepare(job: Job) -> tuple[str, ...]:
        job.launcher = launcher()
        for folder, mode in ((job.folder, 0o777), (job.folder.parent, 0o755)):  # for another user
            folder.chmod(mode)
        return ()

    return broken(fault, "from the start", prepare=prepare)


def _few_processes() -> tuple[str, ...]:
    if os.geteuid() == 0:  # no limit holds for root
        return *_UNPRIVILEGED, "prlimit", "--nproc=200:200"
    return "prlimit", f"--nproc={tasks_of_user() + 200}"


def _disk_of_run(bench: Bench) -> contextlib.AbstractContextManager:
    return small_disk(bench.folder / "small", _DISK - 2_000_000)


ROWS: dict[str, Row] = {
    "disk_full": disk_full,
    "curves_full": curves_full,
    "model_full": full_at_the_end(
        "a disk of the model that is full", "after the first step", "model", taken=30_000_000, step=1
    ),
    "one_disk_full": full_at_the_end(
        "a disk of the whole run that is full", "after the second step", ".", taken=12_000_000, step=2
    ),
    "temporary_full": temporary_full,
    "disk_small": _without_room("a disk of 2 MB for checkpoints and model", _disk_of_run, _use_disk),
    "temporary_small": _without_room(
        "a disk of 2 MB for Ray's temporary folder", lambda bench: _short_disk(_DISK - 2_000_000), _use_temporary
    ),
    "ulimit_v": _limited("ulimit -v of 4 GiB", lambda: ("prlimit", f"--as={4 << 30}:{4 << 30}")),
    "ulimit_u": _limited("ulimit -u that leaves 200", _few_processes),
}
