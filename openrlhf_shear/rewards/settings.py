"""How rewards are made, and the values of flags that are not given."""

import os
from dataclasses import dataclass, field

from openrlhf_shear.rewards.grader import Limits
from openrlhf_shear.rewards.graders import GRADERS
from openrlhf_shear.rewards.maths.answers import check_formats

FUNCTION_SECONDS = 60.0  # for a call of a user's file
SERVER_SECONDS = 60.0  # for a call of a reward server
RETRIES = 2  # of a call of a reward server
MEMORY_MB = 1024
ANSWER_FORMAT = "boxed"
MAX_FAILED = 0.5  # share of a step's rollouts
MAX_FAILED_STEPS = 3


@dataclass(frozen=True)
class RewardSettings:
    """Settings of a pool or a client.

    Args:
        reward: the name of a built-in grader (`graders.GRADERS`), the path of a .py file with OpenRLHF's
            `reward_func(queries, prompts, labels)`, or the URLs of servers.
        cores: grades at a time; 0 for half of the machine's cores.
        timeout: seconds a grade may take (code: a test); 0 for the grader's own, `FUNCTION_SECONDS` for a file.
        memory_mb: memory of a program that is graded.
        allow_unsandboxed: run graded programs without a jail where none works.
        retries: retries of a call of a reward server (`client.RewardClient`); a pool makes none.
        answer_format: of maths, formats of the final answer with commas between them.
        token: token of the servers whose URL has none.
    """

    reward: str
    cores: int = 0
    timeout: float = 0.0
    memory_mb: int = MEMORY_MB
    allow_unsandboxed: bool = False
    retries: int = RETRIES
    answer_format: str = ANSWER_FORMAT
    token: str | None = field(default=None, repr=False)

    @property
    def is_served(self) -> bool:
        return self.reward.startswith(("http://", "https://"))

    @property
    def budget(self) -> int:
        return self.cores or max(1, (os.cpu_count() or 2) // 2)

    @property
    def seconds(self) -> float:
        return self.timeout or (GRADERS[self.reward].seconds if self.reward in GRADERS else FUNCTION_SECONDS)

    @property
    def limits(self) -> Limits:
        """The limits of a grade. Raises ValueError: an answer format is unknown."""
        formats = check_formats(self.answer_format.split(","))
        return Limits(self.seconds, self.memory_mb, formats, self.allow_unsandboxed)
