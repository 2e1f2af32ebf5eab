"""The code grader.

`grade` runs a program in a jail of `hosts`, which keeps jails ready. `tests` reads labels, `text` finds and compares
text, and `checker` runs a label's own check. `inside` holds the scripts that run in them.
"""

from openrlhf_shear.rewards.code.grade import grade_code
from openrlhf_shear.rewards.code.tests import tests_of

__all__ = ["grade_code", "tests_of"]
