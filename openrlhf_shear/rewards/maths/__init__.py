"""Is a final answer the gold answer? `grade` decides, `text` finds the answer, `workers` run what needs evaluating."""

from openrlhf_shear.rewards.maths.grade import grade_math

__all__ = ["grade_math"]
