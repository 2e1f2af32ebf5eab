"""A user's reward function, in a process that can be killed: `FunctionWorker` here, `main` on the other side.

The process is the user's own code with the user's own rights, not a jail: it may load models and call services. It
stays alive between rollouts, so that what it loads is loaded once; a call that hangs costs it its life.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection, Pipe

from openrlhf_shear.rewards.verdict import Verdict, read_reward

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
START_SECONDS = 300.0  # to import the file: it may load a model


class FunctionWorker:
    """One process that runs `reward_func(queries, prompts, labels)` of a Python file. For one thread at a time."""

    def __init__(self, path: str, timeout: float):
        """
        Args:
            path: the .py file; it is imported at the first grade.
            timeout: seconds a call may take.
        """
        self._path, self._timeout = os.path.abspath(path), timeout
        self._process: subprocess.Popen | None = None
        self._pipe: Connection | None = None
        self._retired = False

    def grade(self, query: str, prompt: str, label: object) -> Verdict:
        """One rollout's reward; the worker is started if there is none, and killed if it does not answer."""
        try:
            broken = self._ensure()
            if broken is not None:
                return broken
            self._pipe.send((query, prompt, label))
            if not self._pipe.poll(self._timeout):
                self.close()
                return Verdict(None, failure="timeout", detail=f"reward_func took longer than {self._timeout:g} s")
            return self._pipe.recv()
        except (EOFError, OSError) as error:  # sys.exit, a crash in C, the kernel's out-of-memory killer
            code = self._process.poll() if self._process else None
            self.close()
            return Verdict(None, failure="worker died", detail=f"exit status {code}: {error!r}")

    def close(self) -> None:
        """Kill the process and all it started in its group; the next grade starts another."""
        process, pipe, self._process, self._pipe = self._process, self._pipe, None, None
        if pipe is not None:
            pipe.close()
        if process is not None:
            _kill(process)
            process.wait()

    def retire(self) -> None:
        """Kill the process for good, from any thread; a grade under way comes back as "worker died"."""
        self._retired = True
        process = self._process
        if process is not None:
            _kill(process)

    def _ensure(self) -> Verdict | None:
        if self._process is not None:
            return None
        self._pipe, theirs = Pipe()
        command = [sys.executable, "-m", __name__, self._path, str(theirs.fileno())]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True, env=environment
            )
        if self._retired:
            raise EOFError("the pool is closed")
        if not self._pipe.poll(START_SECONDS):
            self.close()
            return Verdict(
                None, failure="timeout", detail=f"{self._path} took longer than {START_SECONDS:g} s to import"
            )
        problem = self._pipe.recv()
        if problem is not None:
            self.close()
        return problem


def _kill(process: subprocess.Popen) -> None:
    if process.returncode is None:  # not reaped, so the number is still this process's
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def main(path: str, descriptor: int) -> None:
    """Import the file, report, then answer one (query, prompt, label) after the other until the pipe closes."""
    pipe = Connection(descriptor)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a hung call must not outlive a pool that was killed
    try:
        spec = importlib.util.spec_from_file_location("reward_func", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        function = module.reward_func
    except Exception as error:
        pipe.send(Verdict(None, failure="file does not load", detail=f"{path}: {error!r}"))
        return
    pipe.send(None)
    with contextlib.suppress(EOFError):
        while True:
            query, prompt, label = pipe.recv()
            try:
                verdict = read_reward(function([query], [prompt], [label]))
            except Exception as error:
                verdict = Verdict(None, failure=f"raised {type(error).__name__}", detail=str(error)[:500])
            pipe.send(verdict)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
