"""A user's reward function, in processes that can be killed: `FunctionWorkers` here, `main` in the process.

A process runs the user's own code with the user's own rights. It is no jail: it may load models and call services. It
stays alive between rollouts, so that it loads its models once. A call that hangs costs the process its life.

Requests are numbered, and an answer names its request. A worker that says anything else is at fault, and is replaced. A
copy that the file forks of its process answers nothing.
"""

import ast
import contextlib
import ctypes
import hashlib
import importlib.util
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import ModuleType

from openrlhf_shear.rewards.breaker import Breaker
from openrlhf_shear.rewards.crew import CalledOffError, ClosedError, Crew, called_off
from openrlhf_shear.rewards.files import here
from openrlhf_shear.rewards.jail.inside import wire
from openrlhf_shear.rewards.signature import reward_function
from openrlhf_shear.rewards.verdict import Failure, Verdict, as_answer, read_reward

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
START_SECONDS = 300.0  # to import the file: it may load a model
_EXIT_SECONDS = 5.0  # until a process whose pipe is closed has ended by itself
_MOST_BYTES = 1 << 20  # of an answer
_NOT_TRIED = {Failure.TIMEOUT: Failure.FILE_HANGS, Failure.WORKER_DIED: Failure.FILE_DIES}  # after such calls in a row


class LateError(RuntimeError):
    """A user's file took too long to load."""


class _OutOfTurnError(RuntimeError):
    """A worker said something that is no answer to the request."""


class _Process(subprocess.Popen):
    """A worker, with the `pipe` to it. It leads a session, so that the processes it starts can be killed with it."""

    def __init__(self, path: str, seconds: float) -> None:
        """A request that it does not read within `seconds` is late."""
        self._path = path
        self.pipe, theirs = Pipe()
        with socket.socket(fileno=os.dup(self.pipe.fileno())) as ours:
            limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._requests = 0  # requests so far; request 0 is the report of the import
        command = [sys.executable, "-m", __name__, path, str(theirs.fileno())]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"  # leave no cache beside the user's file
        with theirs:
            super().__init__(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True, env=environment
            )

    def poll(self) -> int | None:
        """As `Popen.poll`; an idle worker that speaks unasked counts as dead."""
        code = super().poll()
        return -1 if code is None and self._says_more() else code

    def greet(self, seconds: float | None = None) -> None:
        """Wait until the file is imported; at most `START_SECONDS` if not said otherwise.

        Raises:
            ImportError: it does not load, or has no fitting `reward_func`.
            TimeoutError, EOFError: as `hear`.
        """
        seconds = seconds or START_SECONDS
        try:
            problem = self.hear(seconds)
        except _OutOfTurnError as error:
            raise ImportError(f"{self._path} {error}") from error
        except TimeoutError as error:
            raise TimeoutError(f"{self._path} took longer than {seconds:g} s to import") from error
        if problem is not None:
            raise ImportError(problem)

    def ask(self, *request: object, seconds: float) -> object:
        """Return the answer to a request. Raises as `hear`."""
        self._requests += 1
        try:
            self.pipe.send((self._requests, *request))
            return self.hear(seconds)
        except ConnectionError as error:
            raise self._ended() from error
        except (TimeoutError, BlockingIOError) as error:
            raise TimeoutError(f"reward_func took longer than {seconds:g} s") from error

    def hear(self, seconds: float) -> object:
        """Return the answer to the last request.

        Raises:
            TimeoutError: there is no answer within `seconds`.
            EOFError: the process ended.
            _OutOfTurnError: it said something else, or something more.
        """
        try:
            message = wire.receive(self.pipe.fileno(), time.monotonic() + seconds, _MOST_BYTES)
        except (EOFError, ConnectionError) as error:
            raise self._ended() from error
        except ValueError as error:
            raise _OutOfTurnError(f"wrote something other than an answer into its answer pipe: {error}") from error
        if not isinstance(message, list) or len(message) != 2 or message[0] != self._requests or self._says_more():
            raise _OutOfTurnError(f"did not answer exactly request {self._requests}: got {str(message)[:200]}")
        return message[1]

    def _says_more(self) -> bool:
        """Return whether it wrote more than it was asked for; some of that is then lost."""
        try:
            return self.pipe.poll(0) and os.read(self.pipe.fileno(), 1) != b""
        except ConnectionError:
            return False

    def kill(self) -> None:
        """Kill the process and those that it started, from any thread."""
        if self.returncode is None:  # not reaped, so the number is still this process's
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill and reap the process, and close the pipe."""
        self.pipe.close()
        self.kill()
        self.wait()

    def _ended(self) -> EOFError:
        """Return how the process ended, after a wait for it to end by itself."""
        try:
            code = self.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return EOFError("its answer pipe is closed")
        return EOFError(f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}")


@contextlib.contextmanager
def _loading(path: str) -> Iterator[None]:
    """Raise what `try_file` raises for a file that is missing, and for one whose process ends or hangs."""
    if not os.path.isfile(path):
        raise ImportError(f"{path} is not there; use a path that every node with rollout engines sees")
    try:
        yield
    except TimeoutError as error:
        raise LateError(f"{error}; a model that takes longer to load belongs behind a server") from error
    except (EOFError, OSError) as error:
        raise RuntimeError(f"{path} ended its process while it was imported: {error}; look for sys.exit") from error


def try_file(path: str, seconds: float, requests: Sequence[tuple[str, str, object]]) -> list[Verdict]:
    """Load a file in a new process; return its verdicts on (query, prompt, label) requests.

    The first failure is the last verdict. The import and each call may take `seconds`.

    Raises:
        ImportError: the file is missing, does not load or has no fitting `reward_func`.
        RuntimeError: its process ended meanwhile, or hung (LateError).
    """
    verdicts: list[Verdict] = []
    with _loading(path), contextlib.ExitStack() as stack:
        stack.callback((worker := _Process(os.path.abspath(path), seconds)).end)
        worker.greet(seconds)
        for request in requests:
            try:
                verdicts.append(read_reward(worker.ask(*request, seconds=seconds)))
            except (TimeoutError, _OutOfTurnError, EOFError, OSError) as error:
                verdicts.append(_failure(error))
            if verdicts[-1].failure is not None:
                break
    return verdicts


def _failure(error: Exception) -> Verdict:
    """Return the failure of a call that raised."""
    kinds = {TimeoutError: Failure.TIMEOUT, ImportError: Failure.NOT_LOADED, _OutOfTurnError: Failure.OUT_OF_TURN}
    # Else sys.exit, a crash in C, or the kernel's out-of-memory killer ended the worker.
    failure = next((kind for raised, kind in kinds.items() if isinstance(error, raised)), Failure.WORKER_DIED)
    return Verdict(None, failure=failure, detail=str(error))


class FunctionWorkers(Crew):
    """Processes that run `reward_func(queries, prompts, labels)` of a Python file, imported once in each."""

    def __init__(self, path: str, timeout: float, count: int, breaker: Breaker | None = None, digest: str = "") -> None:
        """
        Args:
            path: the .py file; imported at the first grade, or by `check`.
            timeout: seconds a call may take.
            breaker: default: after `2 * count`, at least 4, calls in a row without an answer, grades fail at once for a
                while.
            digest: of the file (`file_digest`) when the run started; default: now. A process that replaces a lost one
                does not load another file.
        """
        self._path, self.timeout = here(os.path.abspath(path)), timeout
        self._digest = digest or file_digest(self._path)
        super().__init__(count, self._started)
        self._breaker = breaker or Breaker(failures=max(4, 2 * count))
        self._stuck = Verdict(None)  # the last call without an answer

    def _started(self) -> _Process:
        if file_digest(self._path) != self._digest:
            what = f"{self._path}, or a file beside it that it imports, has changed since the run started"
            raise ImportError(f"{what}; restore it, or start the run again")
        return _Process(self._path, self.timeout)

    def check(self) -> None:
        """Load the file in a process, which stays for the first grade. Raises as `try_file`."""
        with _loading(self._path), self._lent():
            pass

    def grade(self, query: str, prompt: str, label: object) -> Verdict:
        """Return the verdict on a response; a failure if the function or its process gives none."""
        ticket = self._breaker.admit()
        if ticket is None:
            return self._refusal()
        answered = None
        try:
            with self._lent() as worker:
                verdict, answered = read_reward(worker.ask(query, prompt, label, seconds=self.timeout)), True
                return verdict
        except CalledOffError as error:
            return Verdict(None, failure=Failure.CALLED_OFF, detail=str(error))
        except (ImportError, _OutOfTurnError, EOFError, OSError, ClosedError) as error:
            verdict = _failure(error)
            if not (isinstance(error, ClosedError) or called_off()):  # else the file is not at fault
                answered, self._stuck = False, verdict
            return verdict
        finally:
            self._breaker.settle(ticket, answered)

    def _refusal(self) -> Verdict:
        """Return the failure of a rollout that is not tried, as the calls before it came to nothing."""
        last = self._stuck
        failure = _NOT_TRIED.get(last.failure, last.failure)
        remedy = "; --reward.timeout allows a call more time" if last.failure is Failure.TIMEOUT else ""
        wait = f"tried again in {self._breaker.seconds_left:.0f} s"
        return Verdict(None, failure=failure, detail=f"no call was answered lately ({last.detail}); {wait}{remedy}")


def file_digest(path: str) -> str:
    """Return a digest of a reward file and of the files beside it that it imports, also by other such files."""
    folder, waiting, found = Path(path).parent, [Path(path)], {}
    while waiting:
        file = waiting.pop()
        if file not in found and file.is_file():
            found[file] = file.read_bytes()
            waiting += [folder / f"{name}{end}" for name in _imports(found[file]) for end in (".py", "/__init__.py")]
    parts = (f"{file.relative_to(folder)} {hashlib.sha256(found[file]).hexdigest()}" for file in sorted(found))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _imports(text: bytes) -> Iterator[str]:
    """Yield the modules that a file may import, with a slash for each dot."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name.replace(".", "/") for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").replace(".", "/")
            yield from (module, *(f"{module}/{each.name}".removeprefix("/") for each in node.names))


def _line(error: Exception, path: str, how: str = ":") -> str:
    """Return the last line of the file in the error's traceback, after `how`; "" if there is none."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f"{how}{lines[-1]}" if lines else ""


def _imported(path: str) -> ModuleType:
    """Import the file as a module that its own classes, pickles and process pools find by name, beside its neighbours.

    It has the name of the file if `import` finds the file by it, and "reward_func" otherwise.
    """
    sys.path.append(os.path.dirname(path))  # last: no neighbour replaces an installed module
    name = os.path.basename(path).removesuffix(".py")
    spec = importlib.util.find_spec(name) if name.isidentifier() and name != "__main__" else None
    if spec is None or spec.origin != path:
        spec = importlib.util.spec_from_file_location("reward_func", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(path: str, descriptor: int) -> None:
    """Import the file, report, then answer (query, prompt, label) requests until the pipe closes."""
    os.set_inheritable(descriptor, False)
    pipe, process = Connection(descriptor), os.getpid()

    def answer(number: int, message: object) -> None:
        if os.getpid() != process:
            os._exit(0)  # a copy that the file forked came back: only the original answers
        wire.send(descriptor, [number, message])

    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # for programs that the file starts and ends
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a hung call must not outlive a pool that was killed
    try:
        module = _imported(path)
    except Exception as error:
        answer(0, f"{path}{_line(error, path)}: {type(error).__name__}: {error}")
        return
    try:
        function = reward_function(module)
    except ValueError as error:
        answer(0, f"{path} {error}")
        return
    answer(0, None)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            number, query, prompt, label = pipe.recv()
            try:
                verdict = read_reward(function([query], [prompt], [label]))
            except Exception as error:
                verdict = Verdict(
                    None,
                    failure=Failure.RAISED,
                    which=type(error).__name__,
                    detail=f"{str(error)[:500]}{_line(error, path, ', line ')}",
                )
            answer(number, as_answer(verdict))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
