"""How rewards are made, and the values of flags that are not given."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

BUILT_IN = ("math", "code")
_PACKAGE = Path(__file__).parents[1]
NAMED = {  # reward files of this package, by the names that flags take
    "arithmetic": str(_PACKAGE / "tasks" / "arithmetic" / "arithmetic.py"),
    "last_number": str(_PACKAGE / "rewards" / "last_number.py"),
}
DEFAULT_SECONDS = {"math": 5.0, "code": 10.0}  # for a maths grade, for a test of a program
FUNCTION_SECONDS = 60.0  # for a call of a user's file
SERVER_SECONDS = 60.0  # for a call of a reward server
RETRIES = 2  # of a call of a reward server
MEMORY_MB = 1024
ANSWER_FORMATS = ("boxed", "tags", "last")  # of maths (`maths.answers.final_answer`)
ANSWER_FORMAT = "boxed"
MAX_FAILED = 0.5  # share of a step's rollouts
MAX_FAILED_STEPS = 3


def here(path: str) -> str:
    """Return this node's copy of a reward file of this package; any other path unchanged.

    `ray job submit` unpacks a checkout into another folder on each node.
    """
    own = {Path(file).relative_to(_PACKAGE.parent).parts: file for file in NAMED.values()}
    return next((file for parts, file in own.items() if Path(path).parts[-len(parts) :] == parts), path)


def check_formats(formats: Sequence[str]) -> tuple[str, ...]:
    """Return the formats. Raises ValueError: there is none, or one is unknown."""
    formats = tuple(formats)
    if not formats or not set(formats) <= set(ANSWER_FORMATS):
        raise ValueError(f"answer formats must be of {', '.join(ANSWER_FORMATS)}: got {formats}; use e.g. boxed")
    return formats


@dataclass(frozen=True)
class RewardSettings:
    """Settings of a pool or a client.

    Args:
        reward: "math", "code", the path of a .py file with OpenRLHF's `reward_func(queries, prompts, labels)`, or the
            URLs of servers.
        cores: grades at a time; 0 for half of the machine's cores.
        timeout: seconds a grade may take (code: a test); 0 for `DEFAULT_SECONDS`, `FUNCTION_SECONDS` for a file.
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
        return self.timeout or DEFAULT_SECONDS.get(self.reward, FUNCTION_SECONDS)
