"""Events of a run, from the process that has them to the screen, where each becomes lines of text.

The trainer's events reach the driver by Ray calls (`relay`), as these objects. The driver's reach the console by its
stdout (`line_of`), among everything else that its processes print (`split`).
"""

import json
from dataclasses import asdict, dataclass
from typing import ClassVar

READER = "OPENRLHF_SHEAR_EVENTS"  # environment variable: set where a console reads stdout
_SEPARATOR = "\x1f"  # ASCII's unit separator: no program prints it by itself, and it ends no line
# What the screen shows of a step's metrics: label, name (of a credit rule, RULE/NAME), format. A metric whose label is
# in capitals is a problem, and shown only where it is not 0.
OF_A_STEP = (
    ("reward", "rollout/reward_mean", ".2f"),
    ("mixed", "RULE/mixed_groups", ".2f"),
    ("len", "rollout/response_length_mean", ".0f"),
    ("cut", "rollout/truncated_rate", ".0%"),
    ("loss", "policy_loss", ".4f"),
    ("kl", "kl", ".3f"),
    ("vllm_kl", "vllm_kl", ".4f"),
    ("gap", "vllm_gap_max", ".2f"),
    ("grad", "actor_grad_norm", ".2f"),
    ("credit", "RULE/credit_share", ".0%"),
    ("NO REWARD", "reward_failed", ".0%"),
    ("SKIPPED UPDATES", "update/skipped_steps", ".0f"),
)


@dataclass(frozen=True)
class Event:
    """Base of all events."""

    prefix: ClassVar[str] = "[openrlhf_shear] "  # of its lines in the log

    def lines(self) -> list[str]:
        """Return the lines of the screen."""
        return []

    def printed(self) -> str:
        """Return the lines of the log, or of stdout where no console reads it."""
        return "".join(f"{self.prefix}{line}\n" for line in self.lines())


@dataclass(frozen=True)
class Note(Event):
    """Message for people."""

    text: str

    def lines(self) -> list[str]:
        return self.text.splitlines()


@dataclass(frozen=True)
class Activity(Event):
    """What the run is doing, e.g. sampling; `done` of `total` if that is counted (else 0 of 0)."""

    prefix: ClassVar[str] = "[openrlhf_shear:now] "
    words: str
    done: int = 0
    total: int = 0

    def lines(self) -> list[str]:
        return [f"{self.words} {self.done}/{self.total}" if self.total else self.words]


@dataclass(frozen=True)
class Record(Event):
    """Message of a logger, in its format; for people unless the level is INFO."""

    level: str  # as `logging` names it
    time: str  # e.g. 11-22 22:33:17
    place: str  # e.g. trainer.py:278
    message: str

    def lines(self) -> list[str]:
        return self.message.splitlines()

    @property
    def prefix(self) -> str:
        return f"{self.level} {self.time} {self.place}] "


@dataclass(frozen=True)
class Step(Event):
    """End of a step."""

    step: int
    steps: int  # of the whole run, as far as known
    metrics: dict[str, float]  # by the names of `OF_A_STEP`
    seconds: float
    seconds_left: float | None  # estimate for the rest of the run; None at the first step

    def lines(self) -> list[str]:
        shown = [f"{self.step:{len(str(self.steps))}}/{self.steps}"]
        for label, name, form in OF_A_STEP:
            value = self.metrics.get(name)
            if value is not None and (value or not label.isupper()):
                shown.append(f"{label} {value:{form}}")
        eta = "-" if self.seconds_left is None else clock(self.seconds_left)
        return ["  ".join([*shown, f"{self.seconds:.1f} s", f"ETA {eta}"])]


@dataclass(frozen=True)
class Checkpoint(Event):
    """Checkpoint that was saved after a step, or that the run resumes from; without lines."""

    step: int


@dataclass(frozen=True)
class End(Event):
    """End of an attempt: on purpose with its exit code (`outcome`), or by an error, without lines."""

    why: str
    code: int | None = None

    def lines(self) -> list[str]:
        return [] if self.code is None else [f"the run ended: {self.why}"]


KINDS = {kind.__name__: kind for kind in Event.__subclasses__()}


def line_of(event: Event) -> str:
    """Return an event as a line of stdout."""
    return f"{_SEPARATOR}{json.dumps([type(event).__name__, asdict(event)])}\n"


def split(line: str) -> tuple[str, Event | None]:
    """Return the text before an event in a line of stdout, and the event; (line, None) without one.

    >>> split("(Trainer pid=7) " + line_of(Checkpoint(8)))
    ('(Trainer pid=7) ', Checkpoint(step=8))
    """
    before, separator, rest = line.partition(_SEPARATOR)
    if separator:
        try:
            (kind, fields), _ = json.JSONDecoder().raw_decode(rest)
            return before, KINDS[kind](**fields)
        except (ValueError, LookupError, TypeError):
            pass  # another program's, or cut off
    return line, None


def clock(seconds: float) -> str:
    """Format a duration as hours, minutes and seconds.

    >>> clock(106.2), clock(3723)
    ('1:46', '1:02:03')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
