"""Where untrusted code runs: `bubblewrap` starts jails, `seccomp` filters calls, `inside` is what runs in them."""

from openrlhf_shear.rewards.jail.bubblewrap import (
    INSIDE,
    START_SECONDS,
    Jail,
    JailError,
    Limits,
    find_jail,
    hear,
    kill,
    tell,
)

__all__ = ["INSIDE", "START_SECONDS", "Jail", "JailError", "Limits", "find_jail", "hear", "kill", "tell"]
