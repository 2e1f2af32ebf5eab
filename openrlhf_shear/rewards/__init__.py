"""Verifiable rewards: maths and code graded out of reach of the policy, and files for `--reward.remote_url FILE.py`.

The graders are imported when they are first used: the processes of a user's file need none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openrlhf_shear.rewards.code import grade_code
    from openrlhf_shear.rewards.maths import grade_math
    from openrlhf_shear.rewards.verdict import Verdict

__all__ = ["Verdict", "grade_code", "grade_math"]
_ROOMS = {"Verdict": "verdict", "grade_code": "code", "grade_math": "maths"}


def __getattr__(name: str) -> object:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
