"""Does a program pass its tests? `grade` runs it in one of the jails of `workers`, `tests` reads labels, `text` finds
and compares text, `checker` asks a label's own check.
"""

from openrlhf_shear.rewards.code.grade import grade_code
from openrlhf_shear.rewards.code.tests import tests_of

__all__ = ["grade_code", "tests_of"]
