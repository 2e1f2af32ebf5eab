"""Counts the threads that can be started in a jail under a limit.

Prints three numbers: the least that it should be, the count, and the most.
"""

import resource
import sys
import threading

_LIMIT, _PROCESSES = 24, 8  # of threads; at most so many belong to the jail itself
_TRIED = _LIMIT + 8


def main() -> None:
    resource.setrlimit(resource.RLIMIT_NPROC, (_LIMIT, _LIMIT))
    threading.stack_size(64 << 10)
    end, started = threading.Event(), 0
    for _ in range(_TRIED):
        try:
            threading.Thread(target=end.wait).start()
        except RuntimeError:
            break
        started += 1
    end.set()
    sys.stdout.write(f"{_LIMIT - _PROCESSES} {started} {_LIMIT}\n")


main()
