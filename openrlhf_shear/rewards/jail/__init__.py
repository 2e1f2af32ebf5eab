"""Jails for untrusted code.

`bubblewrap` starts jails, `seccomp` filters system calls, `escapes` tries to get out, and `inside` holds the scripts
that every jail has.
"""

from openrlhf_shear.rewards.jail.bubblewrap import INSIDE, Jail, JailError, JailProcess, Limits, find_jail

__all__ = ["INSIDE", "Jail", "JailError", "JailProcess", "Limits", "find_jail"]
