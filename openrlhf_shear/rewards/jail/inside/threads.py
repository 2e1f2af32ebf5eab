"""Counts the threads that can be started in a jail under a limit, and prints at least how many it should be, how many
it is, and at most.
"""

import resource
import sys
import threading

_LIMIT, _PROCESSES = 24, 8  # of threads, and at most so many of them are those of the jail itself
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
