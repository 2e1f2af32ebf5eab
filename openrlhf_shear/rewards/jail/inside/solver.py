"""Runs a response inside a jail: each test in a forked child, or one process that answers the judge's calls.

The runner is trusted, the child is not: it has no descriptor of the runner's, cannot start processes, and knows no
expected output. What it may do to the runner (a signal, say) fails its own grade.

Frames: `{"ready": true}` to the parent; from it the job (`kind`, `sources`, `prelude`, `no_fork`, `memory_mb`,
`cpu_seconds`). For "stdin" and "function", by turns a test (`stdin`, or `call` and `arguments`; `timeout`) and how it
ended. For "serve" the job names the pipes from and to the judge, and the parent hears no more.
"""

from __future__ import annotations

import _sitebuiltins
import builtins
import contextlib
import fcntl
import json
import os
import resource
import selectors
import signal
import sys
import time
import types
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import wire
from confine import confine, silence

MAX_OUTPUT = 8 << 20  # bytes; six times that, escaped, fit in a frame
MAX_ERROR = 2000  # bytes kept of the end of stderr
_LINK = 100  # the runner's own descriptors start here
_ANSWER = 90  # where a child writes the value of a call
_CHUNK = 1 << 16


def main() -> Callable[[], None] | None:
    """The runner. Returns in each child, so that untrusted code never runs below these frames."""
    link_in, link_out = (fcntl.fcntl(fd, fcntl.F_DUPFD, _LINK) for fd in (0, 1))
    silence()
    wire.send(link_out, {"ready": True})
    job = wire.receive(link_in)
    if job["kind"] == "serve":
        os.close(link_in)
        os.close(link_out)
        return lambda: serve(job)
    while True:
        try:
            test = wire.receive(link_in)
        except EOFError:
            return None
        theirs, mine = zip(os.pipe(), *(os.pipe()[::-1] for _ in range(3)), strict=True)
        pid = os.fork()
        if pid == 0:
            _take(theirs)
            return lambda: run(job, test)
        for fd in theirs:
            os.close(fd)
        wire.send(link_out, _watch(pid, mine, test))


def run(job: dict, test: dict) -> None:
    """One test, in a child: a program, or a call of a function."""
    names = load(job, "__main__" if job["kind"] == "stdin" else "solution")
    if job["kind"] == "function":
        import plain

        arguments = [plain.decode(argument) for argument in test["arguments"]]
        function = names[test["call"]] if test["call"] in names else getattr(names["Solution"](), test["call"])
        value = plain.encode(function(*arguments))
        with open(_ANSWER, "w") as answer:
            json.dump(value, answer)


def load(job: dict, name: str) -> dict:
    """The names of the response, run in this process, confined, as module `name` with the builtins that `site` adds."""
    confine(job["no_fork"], {resource.RLIMIT_AS: job["memory_mb"] << 20, resource.RLIMIT_CPU: job["cpu_seconds"]})
    module = sys.modules[name] = types.ModuleType(name)
    builtins.exit, builtins.quit = _sitebuiltins.Quitter("exit", "Ctrl-D"), _sitebuiltins.Quitter("quit", "Ctrl-D")
    if job["prelude"]:
        import prelude

        vars(module).update(prelude.NAMES)
    for source in job["sources"]:
        exec(compile(source, "<response>", "exec", dont_inherit=True), vars(module))
    return vars(module)


def serve(job: dict) -> None:
    """Answer the judge until it is gone."""
    from calls import Server

    for fd in {*range(3, os.sysconf("SC_OPEN_MAX"))} - {job["calls"], job["replies"]}:
        with contextlib.suppress(OSError):
            os.close(fd)
    Server(job["calls"], job["replies"]).serve(lambda: load(job, "solution"))


def _take(ends: tuple[int, ...]) -> None:
    """Make the pipes 0, 1, 2 and the answer's; close all else."""
    for fd, place in zip(ends, (0, 1, 2, _ANSWER), strict=True):
        os.dup2(fd, place)
    os.closerange(3, _ANSWER)
    os.closerange(_ANSWER + 1, os.sysconf("SC_OPEN_MAX"))


def _watch(pid: int, ends: tuple[int, ...], test: dict) -> dict:
    """Feed a child and read what it says until it has ended, or end it."""
    feed, out, err, answer = ends
    deadline = time.monotonic() + test["timeout"]
    left = memoryview(test.get("stdin", "").encode("utf-8", "surrogatepass"))
    said = {fd: bytearray() for fd in (out, err, answer)}
    flooded = False
    os.set_blocking(feed, False)
    with selectors.DefaultSelector() as selector:
        selector.register(feed, selectors.EVENT_WRITE)
        for fd in said:
            selector.register(fd, selectors.EVENT_READ)
        while said.keys() & selector.get_map() and not flooded and (wait := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(wait):
                if key.fd == feed:
                    left = more = _feed(feed, left)
                else:
                    more = os.read(key.fd, _CHUNK)
                    said[key.fd] += more
                    if key.fd == err:
                        del said[err][:-MAX_ERROR]
                if not more:
                    selector.unregister(key.fd)
                    os.close(key.fd)
            flooded = max(map(len, said.values())) > MAX_OUTPUT
        for fd in [*selector.get_map()]:
            os.close(fd)
    code = _ended(pid, 0.0 if flooded else deadline)
    how = "output_limit" if flooded else "timeout" if code is None else "ended"
    if code != 0 or flooded:
        said[out] = said[answer] = b""
    texts = {"stdout": said[out], "stderr": said[err], "answer": said[answer]}
    return {"how": how, "code": code, **{name: text.decode("utf-8", "replace") for name, text in texts.items()}}


def _feed(fd: int, left: memoryview) -> memoryview:
    try:
        return left[os.write(fd, left[:_CHUNK]) :] if left else left
    except BlockingIOError:
        return left
    except BrokenPipeError:  # the program read what it wanted
        return left[:0]


def _ended(pid: int, deadline: float) -> int | None:
    """The exit code of a child (negative: the signal), or None if it had to be killed."""
    pause = 0.0002
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(pause)
        pause = min(2 * pause, 0.02)


if __name__ == "__main__" and (untrusted := main()):
    untrusted()
