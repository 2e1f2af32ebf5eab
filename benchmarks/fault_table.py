"""The rows of `fault_rows.toml`: what is done to a run, and when, as data.

A row's `do` lists acts, each "MOMENT: ACT". An attempt that has ended is started again before the next act, and at the
end until it succeeds. Words of the shell know the job's folder as $RUN and its process as $PID.

    do = ["step: kill everything", "resumed: kill ray::ShearPolicyActor"]
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from fault_jobs import ASIDE, BATCH, POLICY, TRAIN, Bench, Job, Outcome, kill

from openrlhf_shear.train.checkpoints import folders

_FILE = Path(__file__).with_name("fault_rows.toml")
# Three steps with a reference and an evaluation each, so that every kind of process and of moment occurs.
_PROMPTS = 3 * BATCH
_WORDS = ("--algo.kl.init_coef", "1e-3", "--eval.dataset", "$RUN/train.jsonl", "--eval.steps", "1")
_WORDS += ("--eval.n_samples_per_prompt", "1", "--eval.temperature", "1.0", "--ckpt.best_metric_key", "none")
_FINAL = {0, 2, 3, 4, 5}  # exit codes after which nobody starts a run again without a change
_MOST = 5  # attempts
_OOM = Path("/sys/fs/cgroup/memory/shear_faults")
_RESUME = "--ckpt.load_enable"


# ── Moments: whether it lasts; polled from the attempt's start, or the last act, on ──


def _since(job: Job, text: str, before: str) -> bool:
    return job.log.count(text) > before.count(text)


def _saving(job: Job, _: str) -> bool:
    return any((job.folder / "ckpt" / "_actor").glob(f"*{folders.PARTIAL}"))


def _syncing(job: Job, _: str) -> bool:
    return any(Path("/dev/shm").glob("openrlhf_shear_*"))


MOMENTS: dict[str, Callable[[Job, str], bool]] = {
    "start": lambda job, before: True,
    "loading": lambda job, before: _since(job, "] loading the models", before),
    "sampling": lambda job, before: _since(job, "] sampling and grading", before),
    "step": lambda job, before: _since(job, "Global step", before),
    "saved": lambda job, before: any((job.folder / "ckpt" / "_actor").glob("global_step?/complete.json")),
    "save": _saving,
    "sync": _syncing,
    "evaluation": lambda job, before: _since(job, "] evaluating", before),
    "resumed": lambda job, before: _since(job, "resuming after step", before),
    "not saved": lambda job, before: _since(job, "no checkpoint of step", before),
}


class NotMetError(RuntimeError):
    """Error of an act whose moment or victim did not come; the row shows nothing."""


class _Disturbed:
    """A job under the acts of a row."""

    def __init__(self, job: Job, outcome: Outcome):
        self.job, self._outcome, self.codes = job, outcome, []
        self.began = 0.0  # time of the first act

    def act(self, text: str) -> None:
        moment, _, what = text.partition(": ")
        verb, _, argument = what.partition(" ")
        if moment == "ended":
            self.finish()
        elif self.job.process is None or self.job.process.poll() is not None:
            self.start()
        victims = self._wait(moment, argument if verb in ("kill", "oom") else "")
        self.began = self.began or time.monotonic()
        getattr(self, f"_{verb}")(argument, victims)

    def start(self) -> None:
        self.finish()
        self.job.start(*([_RESUME] if self.codes else []))

    def finish(self) -> None:
        """Wait for the attempt's end, if one runs, and note its exit code."""
        if self.job.process is not None:
            self.codes.append(self.job.finish(self._outcome))
            self.job.process = None

    def _wait(self, moment: str, victim: str) -> list[psutil.Process]:
        """Return the processes that match at the moment; they are looked for before it, as it may be short."""
        before, found, looked = self.job.log if self.began else "", [], 0.0
        is_short = moment in ("save", "sync")

        def reached() -> bool:
            nonlocal found, looked
            if victim and (not looked if is_short else time.monotonic() - looked > 0.5):
                found, looked = self._matching(victim), time.monotonic()
            return MOMENTS[moment](self.job, before)

        def after_a_step() -> bool:
            return not is_short or self.job.wait_for(lambda: _since(self.job, "Global step", before))

        while moment != "ended" and not (after_a_step() and self.job.wait_for(reached, 0.0005 if is_short else 0.05)):
            self.finish()
            if self.codes[-1] in _FINAL or len(self.codes) == _MOST:
                raise NotMetError(f"no {moment}")
            self.start()
        found = [process for process in found if process.is_running()] or self._matching(victim)
        if victim and not found:
            raise NotMetError(f"no {victim}")
        return found

    def _matching(self, victim: str) -> list[psutil.Process]:
        if victim == "driver":
            return [psutil.Process(self.job.process.pid)]
        return self.job.below("" if victim == "everything" else victim) if victim else []

    def _kill(self, _: str, victims: list[psutil.Process]) -> None:
        kill(*victims)

    def _oom(self, name: str, victims: list[psutil.Process]) -> None:
        """Give a process 1 MiB more, and wait until the kernel kills it."""
        _OOM.mkdir(exist_ok=True)
        count = re.compile(r"oom_kill (\d+)")
        before = count.search((_OOM / "memory.oom_control").read_text())[1]
        (_OOM / "memory.limit_in_bytes").write_text("1M")
        for process in victims:
            (_OOM / "cgroup.procs").write_text(str(process.pid))
        gone, _ = psutil.wait_procs(victims, timeout=120)
        if not gone or count.search((_OOM / "memory.oom_control").read_text())[1] == before:
            raise NotMetError(f"the kernel did not kill {name}")

    def _sh(self, command: str, _: list[psutil.Process]) -> None:
        pid = str(self.job.process.pid) if self.job.process else ""
        shell(command, self.job, PID=pid)

    def _signal(self, argument: str, _: list[psutil.Process]) -> None:
        name, _, whom = argument.partition(" ")
        for process in self._matching(whom):
            with contextlib.suppress(psutil.Error):
                process.send_signal(getattr(signal, name))

    def _try(self, words: str, _: list[psutil.Process]) -> None:
        """Resume with more words, and wait for the end."""
        self.job.start(_RESUME, *words.split())
        self.finish()

    def _rival(self, _: str, __: list[psutil.Process]) -> None:
        """Resume twice at once: one of both must be refused, and the other stays the job's process."""
        self.start()
        first = self.job.process
        self.job.start(_RESUME)
        both = [first, self.job.process]
        while all(process.poll() is None for process in both):
            time.sleep(0.2)
        (loser,) = [process for process in both if process.poll() is not None]
        self.codes.append(loser.returncode)
        both.remove(loser)
        (self.job.process,) = both


def shell(command: str, job: Job, **variables: str) -> None:
    """Run a row's command. Raises CalledProcessError: it failed."""
    names = {"RUN": job.folder, "PYTHON": sys.executable, "BENCH": _FILE.parent, "POLICY": POLICY, ASIDE: 1} | variables
    environment = os.environ | job.environment | {name: str(value) for name, value in names.items()}
    with (job.folder / "sh.txt").open("a") as log:
        subprocess.run(["bash", "-euc", command], env=environment, check=True, stdout=log, stderr=log)


@contextlib.contextmanager
def _around(entry: dict, job: Job) -> Iterator[None]:
    try:
        if "before" in entry:
            shell(entry["before"], job)
        yield
    finally:
        job.kill() if job.process and job.process.poll() is None else None
        if "after" in entry:
            shell(entry["after"], job)


def _row(name: str, entry: dict) -> Callable[[Bench], Outcome]:
    words = (*_WORDS, *entry.get("words", "").split())

    def row(bench: Bench) -> Outcome:
        outcome = Outcome(entry["fault"], entry["when"], trials=1)
        job = bench.job(name, _PROMPTS, *words, *entry.get("flags", "").split())
        job.program = tuple(f"{_FILE.parent}/{entry['program']}".split()) if "program" in entry else TRAIN
        job.launcher = tuple(entry.get("launcher", "").split())
        job.environment = {key: value.replace("$RUN", str(job.folder)) for key, value in entry.get("set", {}).items()}
        disturbed, started = _Disturbed(job, outcome), time.monotonic()
        with _around(entry, job):
            try:
                for act in entry["do"]:
                    disturbed.act(act)
                if disturbed.codes and disturbed.codes[-1] and entry["do"][-1].startswith("ended"):  # it is mended
                    disturbed.start()
                while not disturbed.codes or job.process or disturbed.codes[-1] not in _FINAL:
                    if len(disturbed.codes) >= _MOST:
                        break
                    if job.process is None:
                        disturbed.start()
                    disturbed.finish()
            except NotMetError as error:
                disturbed.finish()
                outcome.ends = f"NOT MET: {error}; exits {disturbed.codes}"
                return outcome
            met = job.folder / "met.txt"
            told = [*_said(job, entry.get("says")), *(met.read_text().splitlines() if met.exists() else ())]
            outcome.ends = "; ".join([", then ".join(map(_shown, disturbed.codes)), *told])
            outcome.seconds = [round(time.monotonic() - (disturbed.began or started), 2)]
            if disturbed.codes[-1] == 0 and entry.get("compare", True):
                bench.compare(outcome, job, *words, without=entry.get("without"))
        return outcome

    return row


def _shown(code: int) -> str:
    return "killed" if code in (-9, 137) else f"exit {code}"


def _said(job: Job, pattern: str | None) -> list[str]:
    if pattern is None:
        return []
    found = re.findall(pattern, job.log)
    text = found[-1].replace(str(job.folder), "RUN") if found else "NOTHING SAID"
    return [text if len(text) < 220 else text[:216] + " ..."]


ROWS = {name: _row(name, entry) for name, entry in tomllib.loads(_FILE.read_text()).items()}
