"""How rewards are made, the values of flags that are not given, and the token of a reward server."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from openrlhf_shear.config.knobs import NOT_NEGATIVE, Knobs, Range, knob
from openrlhf_shear.config.refusal import Refusal
from openrlhf_shear.config.secrets import REWARD_TOKEN
from openrlhf_shear.rewards.grader import Limits
from openrlhf_shear.rewards.graders import GRADERS, TIME_LIMITS
from openrlhf_shear.rewards.maths.answers import check_formats

_TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,512}")


def check_token(token: str) -> str:
    """Return the token without the white space around it.

    Raises:
        ValueError: it is shorter than 16 characters, longer than 512, or would have to be escaped in a URL. The message
            does not repeat it.
    """
    token = token.strip()
    if not _TOKEN.fullmatch(token):
        raise ValueError(
            f"the token must be 16 to 512 letters, digits or -._~ (it stands in a URL): got {len(token)} characters; "
            'use e.g. the output of python -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    return token


def read_token(file: str | Path | None) -> str | None:
    """Return the token in the file, else in the environment; None if neither is given.

    Raises:
        ValueError: the token is not usable (`check_token`), or the file cannot be read.
    """
    if not file:
        return check_token(os.environ[REWARD_TOKEN]) if REWARD_TOKEN in os.environ else None
    try:
        return check_token(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"the token file cannot be read: {error}") from error


FUNCTION_SECONDS = 60.0  # for a call of a user's file
SERVER_SECONDS = 60.0  # for a call of a reward server
RETRIES = 2  # of a call of a reward server
MAX_FAILED = 0.5  # share of a step's rollouts
MAX_FAILED_STEPS = 3


_LIMITS = TIME_LIMITS | {"a reward_func call": FUNCTION_SECONDS}


@dataclass(frozen=True, kw_only=True)
class GradingConfig(Knobs, section="reward"):
    """Knobs of grading, in training, in evaluations and on a reward server."""

    cores: int = knob(0, "Parallel grades on a node; 0 means half of its cores.", NOT_NEGATIVE)
    timeout: float = knob(
        0.0,
        f"Time limit in seconds of {', '.join(_LIMITS)}, or a whole call of a reward server (each try). 0 means "
        f"{', '.join(f'{seconds:g}' for seconds in _LIMITS.values())} and {SERVER_SECONDS:g} seconds.",
        Range(0, remedy="seconds, or 0 for the default of each kind of reward"),
    )
    memory_mb: int = knob(1024, "Memory limit of a graded program, in MB.", Range(64))
    allow_unsandboxed: bool = knob(
        False,
        "If bubblewrap does not work, run the policy's programs without a jail. They can then read, change and send "
        "everything that you can.",
    )
    answer_format: str = knob(
        "boxed",
        'Where the final answer of maths is. boxed: the last \\boxed{}, else ####, else "answer is". tags: '
        "<answer>...</answer>. last: the last value of the last line. Separate several by commas; the first that finds "
        "an answer decides.",
    )

    def conflicts(self) -> Iterator[Refusal]:
        try:
            check_formats(self.answer_format.split(","))
        except ValueError as error:
            yield Refusal("reward.answer_format", str(error))


@dataclass(frozen=True)
class RewardSettings(GradingConfig):
    """Settings of a pool or a client.

    Args:
        reward: the name of a built-in grader (`graders.GRADERS`), the path of a .py file with OpenRLHF's
            `reward_func(queries, prompts, labels)`, or the URLs of servers.
        retries: retries of a call of a reward server (`client.RewardClient`); a pool makes none.
        token: token of the servers whose URL has none.
        digest: of a file when the run started (`function_workers.file_digest`); "": when the pool starts.
    """

    reward: str
    retries: int = RETRIES
    token: str | None = field(default=None, repr=False)
    digest: str = ""

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
        """The limits of a grade."""
        formats = check_formats(self.answer_format.split(","))
        return Limits(self.seconds, self.memory_mb, formats, self.allow_unsandboxed)
