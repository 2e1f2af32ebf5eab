"""The code grader.

`grade` runs a program in a jail of `workers`, `hosts` keeps jails ready, `inside` holds the scripts that run in them,
`tests` reads labels, `text` finds and compares text, and `checker` runs a label's own check.
"""

from openrlhf_shear.rewards.code.grade import grade_code
from openrlhf_shear.rewards.code.tests import tests_of

__all__ = ["grade_code", "tests_of"]
