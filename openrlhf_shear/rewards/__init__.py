"""Verifiable rewards: maths and code graded out of reach of the policy, and files for `--reward.remote_url FILE.py`."""

from openrlhf_shear.rewards.code import CodeVerdict, grade_code
from openrlhf_shear.rewards.maths import MathVerdict, grade_math

__all__ = ["CodeVerdict", "MathVerdict", "grade_code", "grade_math"]
