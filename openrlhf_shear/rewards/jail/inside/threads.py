"""Counts the threads that can be started in a jail under a limit of 24, of which the jail itself takes some."""

import resource
import sys
import threading

_LIMIT = 24


def main() -> None:
    resource.setrlimit(resource.RLIMIT_NPROC, (_LIMIT, _LIMIT))
    threading.stack_size(64 << 10)
    end, started = threading.Event(), 0
    for _ in range(_LIMIT + 8):
        try:
            threading.Thread(target=end.wait).start()
        except RuntimeError:
            break
        started += 1
    end.set()
    sys.stdout.write(str(started))


main()
