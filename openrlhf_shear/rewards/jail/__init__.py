"""Where untrusted code runs: `bubblewrap` starts jails, `hosts` are jails that wait for it, `seccomp` filters calls,
`inside` is what runs in them.
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
