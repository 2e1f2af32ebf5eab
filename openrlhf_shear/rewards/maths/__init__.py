"""The maths grader. `grade` decides, `text` finds the answer, `workers` run what needs evaluation, by the scripts of
`inside`."""

from openrlhf_shear.rewards.maths.grade import grade_math

__all__ = ["grade_math"]
