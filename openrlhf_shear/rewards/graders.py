"""The table of built-in graders."""

from openrlhf_shear.rewards.choice import CHOICE
from openrlhf_shear.rewards.code.grader import CODE
from openrlhf_shear.rewards.files import FILES
from openrlhf_shear.rewards.grader import Grader
from openrlhf_shear.rewards.maths.grader import MATH

GRADERS: dict[str, Grader] = {grader.name: grader for grader in (MATH, CODE, CHOICE)}
NAMES = (*GRADERS, *FILES)  # of graders and reward files that flags take


def about() -> str:
    """Return a sentence on each name, for `--help`."""
    return " ".join(f"{name}: {entry.about}." for name, entry in (GRADERS | FILES).items())


def time_limits() -> dict[str, float]:
    """Return the default limits of grades [s] by what they limit, e.g. "a maths grade"."""
    return {grader.timed: grader.seconds for grader in GRADERS.values() if grader.timed}
