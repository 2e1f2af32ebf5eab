"""Runs a response inside a jail: each test in a child, or one process that answers the judge's calls.

The job has `kind`, `sources`, `prelude`, `no_fork`, `memory_mb` and `cpu_seconds`. "stdin" and "function" take a test
at a time (`stdin`, or `call` and `arguments`; `timeout`); the job of "serve" names the pipes from and to the judge.
"""

import _sitebuiltins
import builtins
import contextlib
import json
import os
import resource
import sys
import types
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import runner


def main() -> Callable[[], None] | None:
    link_in, link_out, job = runner.opened()
    if job["kind"] == "serve":
        return lambda: serve(job)
    return runner.each_in_a_child(link_in, link_out, lambda test: run(job, test))


def run(job: dict, test: dict) -> None:
    """One test, in a child: a program, or a call of a function."""
    names = load(job, "__main__" if job["kind"] == "stdin" else "solution")
    if job["kind"] == "function":
        import plain

        arguments = [plain.decode(argument) for argument in test["arguments"]]
        function = names[test["call"]] if test["call"] in names else getattr(names["Solution"](), test["call"])
        value = plain.encode(function(*arguments))
        with open(runner.ANSWER, "w") as answer:
            json.dump(value, answer)


def load(job: dict, name: str) -> dict:
    """The names of the response, run in this process, confined, as module `name` with the builtins that `site` adds."""
    limits = {resource.RLIMIT_AS: job["memory_mb"] << 20, resource.RLIMIT_CPU: job["cpu_seconds"]}
    runner.confine(job["no_fork"], limits)
    module = sys.modules[name] = types.ModuleType(name)
    builtins.exit, builtins.quit = _sitebuiltins.Quitter("exit", "Ctrl-D"), _sitebuiltins.Quitter("quit", "Ctrl-D")
    if job["prelude"]:
        import prelude

        vars(module).update(prelude.NAMES)
    for source in job["sources"]:
        exec(compile(source, "<response>", "exec", dont_inherit=True), vars(module))
    return vars(module)


def serve(job: dict) -> None:
    """Answer the judge until it is gone; the link to the parent is closed first."""
    from calls import Server

    for fd in {*range(3, os.sysconf("SC_OPEN_MAX"))} - {job["calls"], job["replies"]}:
        with contextlib.suppress(OSError):
            os.close(fd)
    Server(job["calls"], job["replies"]).serve(lambda: load(job, "solution"))


if __name__ == "__main__" and (untrusted := main()):
    untrusted()
