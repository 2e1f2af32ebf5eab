"""The maths grader: `grade` decides, `text` finds the answer, `workers` evaluate in a jail."""

from openrlhf_shear.rewards.maths.grade import grade_math

__all__ = ["grade_math"]
