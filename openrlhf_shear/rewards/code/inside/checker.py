"""Runs a task's own `check(input, expected, output)` inside a jail, each call in a child.

The job has the `checker`'s source, `memory_mb` and `values`. If `values` is true, input, expected and output are values
of a function, and the output is encoded (see `plain`). Else they are texts.
"""

import json
import os
import resource
from collections.abc import Callable

import plain
import runner


def main(job: dict, link_in: int, link_out: int) -> Callable[[], None] | None:
    runner.silence()
    return runner.each_in_a_child(link_in, link_out, lambda task: run(job, task))


def run(job: dict, task: dict) -> None:
    runner.confine("", {resource.RLIMIT_AS: job["memory_mb"] << 20})
    os.write(runner.ANSWER, json.dumps(_checked(job, task)).encode())


def _checked(job: dict, task: dict) -> bool:
    try:
        output = plain.decode(task["output"]) if job["values"] else task["output"]
    except ValueError:  # forged by the response
        return False
    names = {"__name__": "checker"}
    exec(compile(job["checker"], "<checker>", "exec", dont_inherit=True), names)
    answer = names["check"](task["input"], task["expected"], output)
    if not isinstance(answer, bool):
        raise TypeError(f"check must return True or False: got {type(answer).__name__}")
    return answer
