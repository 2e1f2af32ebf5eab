"""What a check of a machine returns."""

from dataclasses import dataclass
from typing import Literal

GIB = 2**30


@dataclass(frozen=True)
class Result:
    """Of one check."""

    name: str
    status: Literal["ok", "warn", "fail"]  # fail: training, or a part of it, cannot work so; warn: it can, but look
    seen: str  # for a person
    remedy: str = ""  # what to do; empty where nothing is wrong
    same: str = ""  # what all nodes of a cluster must have in common; empty where they may differ


def ok(name: str, seen: str, same: str = "") -> Result:
    return Result(name, "ok", seen, "", same)


def warn(name: str, seen: str, remedy: str, same: str = "") -> Result:
    return Result(name, "warn", seen, remedy, same)


def fail(name: str, seen: str, remedy: str, same: str = "") -> Result:
    return Result(name, "fail", seen, remedy, same)
