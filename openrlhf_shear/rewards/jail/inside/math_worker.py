"""Compares answers with math-verify inside a jail: imported once, each comparison in a child with tight limits."""

import gc
import json
import os
import re
import resource
import sys
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # python -I leaves it out

import runner
from equality import compare

_FILES = 16
# The parser learns its grammar and sympy fills its caches while they work: each pair saves every child some 10 ms.
_WARM_UP = r"""
\frac{1}{2}\sqrt{3} ~ \frac{\sqrt{3}}{2}    \frac{\sqrt{3}}{3} ~ 1/\sqrt{3}    3\sqrt{13} ~ \sqrt{118}
12\pi ~ \frac{1}{2}\pi+2    (1,\pi] ~ 1<x\le \pi    x>2 ~ (2,\infty)
(-\infty,2)\cup(3,\infty) ~ (3,\infty)\cup(-\infty,2)    \{1,\sqrt{2}\} ~ \sqrt{2},1
1\pm\sqrt{5} ~ 1-\sqrt{5},1+\sqrt{5}    (3,\frac{\pi}{2}) ~ (3,\pi/2)    3+2i ~ 2i-3    x^3-2x+1 ~ 1+x^3-2x
(x+1)(x-2) ~ x^2-x-2    \frac{n(n+1)}{2} ~ n(n-1)/2    \frac{2a+b}{c} ~ (b+3a)/c    y=2x+1 ~ 2x-y+1=0
\begin{pmatrix} 1 & \frac{1}{2} \\ 3 & 4 \end{pmatrix} ~ \begin{bmatrix} 1 & 1/2 \\ 3 & 5 \end{bmatrix}
2^{n}-1 ~ 2\cdot 2^{n-1}    \binom{n}{2} ~ n!/2    \log_{2} 3+\sin x ~ \cos x+\ln 2
\sqrt[3]{4} ~ \lfloor x \rfloor
"""


def main() -> Callable[[], None] | None:
    for pair in re.split(r"\n|    ", _WARM_UP.strip()):
        compare(*pair.split(" ~ "), None)
    gc.freeze()
    gc.disable()  # a collection would copy every page of a child
    link_in, link_out, job = runner.opened()
    return runner.each_in_a_child(link_in, link_out, lambda task: grade(job["no_fork"], task))


def grade(no_fork: str, task: dict) -> None:
    """One comparison, in a child that ends with it."""
    _confine(no_fork, task["timeout"])
    try:
        said = compare(task["gold"], task["answer"], task["tolerance"])
    except MemoryError:
        said = False, "memory"
    except Exception:  # sympy raises anything; the answer is then not shown to be equal
        said = False, "unparsable"
    os.write(runner.ANSWER, json.dumps(said).encode())
    os._exit(0)  # an interpreter with sympy takes longer to end than a grade


def _confine(no_fork: str, timeout: float) -> None:
    """Leave the child its result pipe and nothing else. The memory limit is the jail's."""
    runner.silence()
    limits = {resource.RLIMIT_CPU: int(timeout) + 2, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NOFILE: _FILES}
    runner.confine(no_fork, limits)


if __name__ == "__main__" and (comparing := main()):
    comparing()
