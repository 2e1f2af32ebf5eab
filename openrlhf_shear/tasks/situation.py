"""What a task's simulator says about the first tokens of a response (`lab.values` asks)."""

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True)
class Situation:
    """The situation after some tokens of a response.

    Prefixes of responses to one problem with equal keys have equal chances of a right answer. This holds for every
    policy that depends on no more than the simulator does, whatever errors it makes.
    """

    # None: the simulator has lost the thread, so that the chance depends on all tokens
    key: Hashable | None
    # the chance of a right answer where the task alone settles it, but for slips of the pen; None where the policy does
    value: float | None = None


LOST = Situation(None)
