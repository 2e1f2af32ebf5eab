"""Ways out of a jail, and the defence against each (`escapes.toml`). `try_escapes` tries them all on this machine."""

import contextlib
import json
import os
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

from openrlhf_shear.rewards.code.hosts import DiedError, Grade, Host
from openrlhf_shear.rewards.jail.bubblewrap import INSIDE, Jail, Limits

MARK = "openrlhf-shear-escape"
_SECONDS = 60

_TABLES = tomllib.loads(Path(__file__).with_name("escapes.toml").read_text(encoding="utf-8"))
ESCAPES, ESCAPES_OF_A_PROGRAM, LEFT_BEHIND = (_TABLES[kind] for kind in ("any", "program", "left"))


def try_escapes(jail: Jail) -> list[tuple[str, str, str]]:
    """Return the name, the defence and the outcome of each attempt: "refused...", or "WORKED: ..." with the result.

    Attempts that the jail cannot refuse on this machine are left out; `mechanisms` names them.
    """
    names = {
        "HOME": os.path.realpath(os.path.expanduser("~")),  # of a container it may be /, and a jail has its own
        "PROJECT": str(Path(__file__).parents[3]),
        "PREFIX": Path(sys.base_prefix).parts,
        "PARENT": os.getpid(),
        "MARK": MARK,
    }
    request = {"names": names, "attempts": {name: attempt for name, (attempt, _) in ESCAPES.items()}}
    process = jail.start(INSIDE / "escapes.py", Limits())
    try:
        out, _ = process.communicate(json.dumps(request).encode() + b"\n", timeout=_SECONDS)
    finally:
        process.end()
    outcomes = dict(map(json.loads, out.splitlines()))
    attempts = [{name: attempt for name, (attempt, _) in ESCAPES_OF_A_PROGRAM.items()}]
    for name, (leave, find, _) in LEFT_BEHIND.items():
        attempts += [{"leaving": leave}, {name: find}]
    for tried in _of_programs(jail, names, attempts):
        outcomes |= tried
    left = {name: (find, refuses) for name, (_, find, refuses) in LEFT_BEHIND.items()}
    every = ESCAPES | ESCAPES_OF_A_PROGRAM | left
    rows = [(name, refuses, outcomes.get(name, "nothing: the script ended")) for name, (_, refuses) in every.items()]
    return [row for row in rows if row[0] not in jail.lacks]


def _of_programs(jail: Jail, names: dict, each: list[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Yield what happened to the attempts of programs. Each is a grade; a jail serves grades as long as it is clean."""
    source = (INSIDE / "escapes.py").read_text()
    job = {"kind": "stdin", "sources": [source], "prelude": False, "no_fork": jail.no_fork, "threads": jail.threads}
    job |= {"memory_mb": Limits().memory_mb, "cpu_seconds": _SECONDS}
    host, clean = Host(jail), True
    try:
        host.greet()
        for attempts in each:
            if not clean:
                host.end()
                host = Host(jail)
                host.greet()
            with contextlib.closing(Grade(host)) as grade, contextlib.suppress(DiedError, TimeoutError):
                grade.tell(job, time.monotonic() + _SECONDS)
                request = json.dumps({"names": names, "attempts": attempts})
                ended = grade.run({"stdin": request + "\n"}, _SECONDS, "a program that tries escapes")
                yield dict(map(json.loads, ended["stdout"].splitlines()))
            clean = grade.is_clean()
    finally:
        host.end()
