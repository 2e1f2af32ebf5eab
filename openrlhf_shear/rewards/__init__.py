"""Verifiable rewards: maths and code graded out of reach of the policy, and files for `--reward.remote_url FILE.py`."""

from openrlhf_shear.rewards.code import grade_code
from openrlhf_shear.rewards.maths import grade_math
from openrlhf_shear.rewards.verdict import Verdict

__all__ = ["Verdict", "grade_code", "grade_math"]
