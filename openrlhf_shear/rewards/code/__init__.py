"""Does a program pass its tests? `grade` runs it in a jail, `tests` reads labels, `text` finds and compares text."""

from openrlhf_shear.rewards.code.grade import grade_code
from openrlhf_shear.rewards.code.tests import tests_of

__all__ = ["grade_code", "tests_of"]
