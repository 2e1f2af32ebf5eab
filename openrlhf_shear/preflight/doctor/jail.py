"""The jail of graded programs: whether one works here, and whether the ways out of it are shut."""

from __future__ import annotations

from collections.abc import Callable

from openrlhf_shear.preflight.doctor.result import Result, fail, ok
from openrlhf_shear.rewards.jail import Jail, JailError, find_jail
from openrlhf_shear.rewards.jail.escapes import try_escapes


def jail(find: Callable[[], Jail] = find_jail) -> Result:
    name = "jail"
    try:
        mechanisms = find().mechanisms
    except JailError as error:
        problem, _, remedy = str(error).partition("; ")
        return fail(name, problem, f"{remedy}; only rewards math and code, and benchmarks, need it")
    return ok(name, f"bubblewrap and seccomp, {len(mechanisms)} mechanisms")


def escapes(
    find: Callable[[], Jail] = find_jail, attempt: Callable[[Jail], list[tuple[str, str, str]]] = try_escapes
) -> Result:
    """What a graded program may try against this machine, tried one by one."""
    name = "jail, escapes"
    try:
        attempts = attempt(find())
    except JailError:
        return fail(name, "not tried: there is no jail", "see the jail above")
    if worked := [f"{what} ({said})" for what, _, said in attempts if not refused(said)]:
        return fail(name, "; ".join(worked), "grade nothing that you do not trust here, and please report it")
    return ok(name, f"{len(attempts)} tried, all refused")


def refused(said: str) -> bool:
    """Whether what `try_escapes` says of an attempt means that the jail held."""
    return said.startswith("refused")
