"""What a check of a machine returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GIB = 2**30


@dataclass(frozen=True)
class Result:
    """
    Attributes:
        status: fail: training, or a part of it, cannot work so; warn: it can, but look at it.
        seen: what was found, for a person.
        remedy: what to do; empty where nothing is wrong.
        same: what all nodes of a cluster must have in common; empty where they may differ.
    """

    name: str
    status: Literal["ok", "warn", "fail"]
    seen: str
    remedy: str = ""
    same: str = ""


def ok(name: str, seen: str, same: str = "") -> Result:
    return Result(name, "ok", seen, "", same)


def warn(name: str, seen: str, remedy: str, same: str = "") -> Result:
    return Result(name, "warn", seen, remedy, same)


def fail(name: str, seen: str, remedy: str, same: str = "") -> Result:
    return Result(name, "fail", seen, remedy, same)
