"""A user's reward function, in processes that can be killed: `FunctionWorkers` here, `main` on the other side.

A process is the user's own code with the user's own rights, not a jail: it may load models and call services. It
stays alive between rollouts, so that what it loads is loaded once; a call that hangs costs it its life.
"""

import contextlib
import ctypes
import importlib.util
import os
import signal
import subprocess
import sys
import traceback
from multiprocessing.connection import Connection, Pipe

from openrlhf_shear.rewards.breaker import Breaker
from openrlhf_shear.rewards.crew import ClosedError, Crew
from openrlhf_shear.rewards.jobs import CalledOffError, called_off
from openrlhf_shear.rewards.signature import problem_of
from openrlhf_shear.rewards.verdict import Verdict, read_reward

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
START_SECONDS = 300.0  # to import the file: it may load a model


class _Process(subprocess.Popen):
    """A worker, with the `pipe` to it; the leader of a session, so that what it starts can be killed with it."""

    def __init__(self, path: str) -> None:
        self.pipe, theirs = Pipe()
        command = [sys.executable, "-m", __name__, path, str(theirs.fileno())]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"  # beside a file of the user's
        with theirs:
            super().__init__(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True, env=environment
            )


class FunctionWorkers(Crew):
    """Processes that run `reward_func(queries, prompts, labels)` of a Python file, imported once in each."""

    def __init__(
        self,
        path: str,
        timeout: float,
        count: int,
        breaker: Breaker | None = None,
        start_seconds: float | None = None,
    ) -> None:
        """
        Args:
            path: the .py file; it is imported at the first grade, or by `check`.
            timeout: seconds a call may take.
            breaker: after `2 * count`, at least 4, calls in a row without an answer, grades fail at once for a while.
            start_seconds: to import the file; None for `START_SECONDS`.
        """
        super().__init__(count)
        self._path, self._timeout = os.path.abspath(path), timeout
        self._start_seconds = START_SECONDS if start_seconds is None else start_seconds
        self._breaker = breaker or Breaker(failures=max(4, 2 * count))
        self._stuck = Verdict(None)  # the last one without an answer

    def check(self) -> None:
        """Load the file in one process, which stays for the first grade.

        Raises:
            ImportError: the file is not there, does not load or has no fitting `reward_func`.
            RuntimeError: its process ended or hung meanwhile.
        """
        if not os.path.isfile(self._path):
            raise ImportError(f"{self._path} is not there; use a path that every node with rollout engines sees")
        try:
            with self._lent():
                pass
        except TimeoutError as error:
            raise RuntimeError(f"{error}; a model that takes longer to load belongs behind a server") from error
        except (EOFError, OSError) as error:
            raise RuntimeError(f"{self._path} ended its process while it was imported; look for sys.exit") from error

    def grade(self, query: str, prompt: str, label: object) -> Verdict:
        """The verdict on one response, a failure where the function or its process gives none."""
        ticket = self._breaker.admit()
        if ticket is None:
            return self._refusal()
        answered = None
        try:
            verdict, answered = self._ask(query, prompt, label)
            if answered is False:
                self._stuck = verdict
            return verdict
        finally:
            self._breaker.settle(ticket, answered)

    def _ask(self, query: str, prompt: str, label: object) -> tuple[Verdict, bool | None]:
        """The verdict, and whether the file gave it; None where the workers were closed meanwhile."""
        worker = None
        try:
            with self._lent() as worker:
                worker.pipe.send((query, prompt, label))
                if not worker.pipe.poll(self._timeout):
                    raise TimeoutError(f"reward_func took longer than {self._timeout:g} s")
                return worker.pipe.recv(), True
        except TimeoutError as error:
            return Verdict(None, failure="timeout", detail=str(error)), False
        except ImportError as error:
            return Verdict(None, failure="file does not load", detail=str(error)), False
        except CalledOffError as error:
            return Verdict(None, failure="called off", detail=str(error)), None
        except (EOFError, OSError, ClosedError) as error:  # sys.exit, a crash in C, the kernel's out-of-memory killer
            code = worker.returncode if worker else None
            told = Verdict(None, failure="worker died", detail=f"exit status {code}: {error!r}")
            return told, None if isinstance(error, ClosedError) or called_off() else False

    def _refusal(self) -> Verdict:
        """For a rollout that is not tried, as those before it came to nothing."""
        last = self._stuck
        failure = {"timeout": "reward file hangs", "worker died": "reward file dies"}.get(last.failure, last.failure)
        remedy = "; --reward.timeout allows a call more time" if last.failure == "timeout" else ""
        wait = f"tried again in {self._breaker.seconds_left:.0f} s"
        return Verdict(None, failure=failure, detail=f"no call was answered lately ({last.detail}); {wait}{remedy}")

    def _spawn(self) -> _Process:
        return _Process(self._path)

    def _greet(self, worker: _Process) -> None:
        if not worker.pipe.poll(self._start_seconds):
            raise TimeoutError(f"{self._path} took longer than {self._start_seconds:g} s to import")
        problem = worker.pipe.recv()
        if problem is not None:
            raise ImportError(problem)

    def _kill(self, worker: _Process) -> None:
        if worker.returncode is None:  # not reaped, so the number is still this process's
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)

    def _end(self, worker: _Process) -> None:
        worker.pipe.close()
        self._kill(worker)
        worker.wait()


def _line(error: Exception, path: str, how: str = ":") -> str:
    """The line of the file in which it was raised, or on the way there."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f"{how}{lines[-1]}" if lines else ""


def main(path: str, descriptor: int) -> None:
    """Import the file, report, then answer one (query, prompt, label) after the other until the pipe closes."""
    pipe = Connection(descriptor)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a hung call must not outlive a pool that was killed
    try:
        spec = importlib.util.spec_from_file_location("reward_func", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:
        pipe.send(f"{path}{_line(error, path)}: {type(error).__name__}: {error}")
        return
    problem = problem_of(module)
    pipe.send(problem and f"{path} {problem}")
    if problem:
        return
    function = module.reward_func
    with contextlib.suppress(EOFError):
        while True:
            query, prompt, label = pipe.recv()
            try:
                verdict = read_reward(function([query], [prompt], [label]))
            except Exception as error:
                verdict = Verdict(
                    None,
                    failure=f"raised {type(error).__name__}",
                    detail=f"{str(error)[:500]}{_line(error, path, ', line ')}",
                )
            pipe.send(verdict)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
