"""Runs a response inside a jail: each test in a child, or a single process that answers the judge's calls.

The job has `kind`, `sources`, `prelude`, `no_fork`, `threads`, `memory_mb` and `cpu_seconds`. "stdin" and "function"
take a test at a time (`stdin`, or `call` and `arguments`; `timeout`); "serve" has pipes from and to the judge.
"""

import _sitebuiltins
import atexit
import builtins
import contextlib
import gc
import io
import json
import os
import resource
import sys
import threading
import types
from collections.abc import Callable

import plain
import runner
from calls import Server


def test(job: dict, link_in: int, link_out: int) -> Callable[[], None] | None:
    """Run the tests of the parent, until it is done."""
    runner.silence()
    return runner.each_in_a_child(link_in, link_out, lambda task: _as_a_program(lambda: run(job, task)))


def run(job: dict, task: dict) -> None:
    """Run a test in a child: a program, or a call of a function."""
    names = load(job, "__main__" if job["kind"] == "stdin" else "solution")
    if job["kind"] == "function":
        arguments = [plain.decode(argument) for argument in task["arguments"]]
        function = names[task["call"]] if task["call"] in names else getattr(names["Solution"](), task["call"])
        value = plain.encode(function(*arguments))
        with open(runner.ANSWER, "w") as answer:
            json.dump(value, answer)


def _as_a_program(work: Callable[[], None]) -> None:
    """Do the work, and end this process as Python would, but without taking down all modules.

    Only the modules that a response made are cleared: to take down the others takes longer than most tests.
    """
    code = 0
    try:
        work()
    except SystemExit as error:
        code = 0 if error.code is None else error.code
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    _flush(sys.stdout, sys.stderr)  # before the names that a response's own file uses are gone
    for name in {"__main__", "solution"} & sys.modules.keys():
        sys.modules[name].__dict__.clear()
    gc.collect()
    _flush(*(file for file in (sys.stdout, sys.stderr, sys.__stdout__) if type(file) is io.TextIOWrapper))
    os._exit(code & 0xFF)


def _flush(*files: object) -> None:
    """Flush what has not been closed or detached; a program's own file may raise anything."""
    for file in files:
        with contextlib.suppress(BaseException):
            file.flush()


def load(job: dict, name: str) -> dict:
    """Run the response in this process, confined, as module `name`, and return its names.

    It has the builtins that `site` adds.
    """
    limits = {resource.RLIMIT_AS: job["memory_mb"] << 20, resource.RLIMIT_CPU: job["cpu_seconds"]}
    if job["threads"]:
        limits[resource.RLIMIT_NPROC] = job["threads"]
    runner.confine(job["no_fork"], limits)
    module = sys.modules[name] = types.ModuleType(name)
    builtins.exit, builtins.quit = _sitebuiltins.Quitter("exit", "Ctrl-D"), _sitebuiltins.Quitter("quit", "Ctrl-D")
    builtins.open = io.open = _opened
    if job["prelude"]:
        import prelude

        if job["kind"] == "function":  # as builtins: a name of the library is no answer to a call
            vars(module)["__builtins__"] = vars(builtins) | prelude.NAMES
        else:
            vars(module).update(prelude.NAMES)
    for source in job["sources"]:
        exec(compile(source, "<response>", "exec", dont_inherit=True), vars(module))
    return vars(module)


def _opened(file: object, *options: object, _open: Callable = open, **named: object) -> object:
    """Open a file. A jail has no /proc, which /dev/stdin points to."""
    is_stdin = isinstance(file, (str, os.PathLike)) and os.fspath(file) == "/dev/stdin"
    return _open(os.dup(0) if is_stdin else file, *options, **named)


def serve(job: dict, _: int, __: int, calls: int, replies: int) -> Callable[[], None]:
    """Answer the judge until it is gone, without the link to the parent."""
    runner.silence()
    runner.keep([calls, replies])
    return lambda: Server(calls, replies).serve(lambda: load(job, "solution"))
