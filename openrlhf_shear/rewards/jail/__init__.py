"""Where untrusted code runs: `bubblewrap` starts jails, `talk` speaks to what runs in one, which `inside` holds."""

from openrlhf_shear.rewards.jail.bubblewrap import INSIDE, Jail, JailError, Limits, find_jail, kill
from openrlhf_shear.rewards.jail.talk import START_SECONDS, hear, tell

__all__ = ["INSIDE", "START_SECONDS", "Jail", "JailError", "Limits", "find_jail", "hear", "kill", "tell"]
