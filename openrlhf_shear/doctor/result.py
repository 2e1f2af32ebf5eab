"""Result of a check of a machine."""

from dataclasses import dataclass
from typing import Literal

GIB = 2**30


@dataclass(frozen=True)
class Result:
    """Status of a check, its finding and a remedy."""

    name: str
    status: Literal["ok", "warn", "fail"]  # fail: training, or a part of it, cannot work; warn: it may work badly
    seen: str  # the finding, for a person
    remedy: str = ""  # what to do; empty if nothing is wrong
    same: str = ""  # value that must be equal on all nodes of a cluster; empty if nodes may differ


def ok(name: str, seen: str, same: str = "") -> Result:
    return Result(name, "ok", seen, "", same)


def warn(name: str, seen: str, remedy: str, same: str = "") -> Result:
    return Result(name, "warn", seen, remedy, same)


def fail(name: str, seen: str, remedy: str, same: str = "") -> Result:
    return Result(name, "fail", seen, remedy, same)
