"""The table of built-in graders."""

from openrlhf_shear.rewards import files
from openrlhf_shear.rewards.choice import CHOICE
from openrlhf_shear.rewards.code.grade import CODE
from openrlhf_shear.rewards.grader import Grader
from openrlhf_shear.rewards.maths.grader import MATH

GRADERS: dict[str, Grader] = {grader.name: grader for grader in (MATH, CODE, CHOICE)}
ABOUT = {name: grader.about for name, grader in GRADERS.items()} | files.ABOUT  # of graders and reward files, by name
NAMES = tuple(ABOUT)
TIME_LIMITS = {grader.timed: grader.seconds for grader in GRADERS.values() if grader.timed}  # "a maths grade": seconds
