"""Jails for untrusted code.

`bubblewrap` starts jails, `hosts` keeps jails ready for code, `seccomp` filters system calls, and `inside` holds the
scripts that run in jails.
"""

from openrlhf_shear.rewards.jail.bubblewrap import (
    INSIDE,
    Jail,
    JailError,
    Limits,
    find_jail,
    greet,
    hear,
    kill,
    strike,
    tell,
)

__all__ = ["INSIDE", "Jail", "JailError", "Limits", "find_jail", "greet", "hear", "kill", "strike", "tell"]
