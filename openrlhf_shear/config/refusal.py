"""Types for the problems of a command line. Checks return them, and only the entry point prints them.

A check yields a `Refusal` for each setting that cannot work, and a `Told` for each note or warning. Code that cannot
continue raises a `LineError`, which holds refusals.
"""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

from openrlhf_shear.config.secrets import hidden

MOST_SHOWN = 20
_NEAR = 0.7  # least similarity of two names, from 0 to 1


@dataclass(frozen=True)
class Refusal:
    """A setting that cannot work.

    >>> print(refusal("shear.window", "must be at least 1", 0, "e.g. 100"))
    shear.window must be at least 1: got 0; use e.g. 100
    >>> print(Refusal("eval.suite", "there is no file aime24.jsonl"))
    eval.suite: there is no file aime24.jsonl
    """

    flag: str  # dotted name, or an environment variable; "" if no flag is to blame
    problem: str
    got: str = ""  # text to show, without secrets
    use: str = ""  # what to do instead

    def __str__(self) -> str:
        got = f" {self.problem}: got {self.got}" if self.got else f": {self.problem}"
        return f"{self.flag}{got}".removeprefix(": ") + (f"; use {self.use}" if self.use else "")


@dataclass(frozen=True)
class Note:
    """A note or warning about a command line that can be used."""

    text: str
    kind: str = "Warning"  # or "Info"

    def __str__(self) -> str:
        return f"[{self.kind}] {self.text}"


Finding = Refusal | Note


class LineError(ValueError):
    """A command line cannot be used."""

    def __init__(self, *refusals: Refusal):
        super().__init__("; and ".join(map(str, refusals)))
        self.refusals = refusals


def refusal(flag: str, problem: str, got: object, use: str) -> Refusal:
    """Return the refusal of a value, shown as Python writes it."""
    return Refusal(flag, problem, repr(hidden(got)), use)


def refuse(flag: str, problem: str, got: object, use: str) -> NoReturn:
    """Raise a `LineError` with a single refusal."""
    raise LineError(refusal(flag, problem, got, use))


@dataclass
class Findings:
    """Refusals and notes about a command line."""

    refusals: list[Refusal] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def take(self, *checks: Iterable[Finding]) -> None:
        """Note the findings of each check, until it ends or raises."""
        for check in checks:
            try:
                for finding in check:
                    if isinstance(finding, Note):
                        self.notes.append(finding)
                    else:
                        self.refusals.append(finding)
            except Exception as error:
                self.note(error)

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Note the refusals of a `LineError`, and a ValueError as a refusal.

        Any other error of a check after a refusal is taken as its consequence, and dropped.
        """
        try:
            yield
        except Exception as error:
            self.note(error)

    def note(self, error: Exception) -> None:
        """Note an error of a check, as `caught` does."""
        if isinstance(error, LineError):
            self.refusals += error.refusals
        elif isinstance(error, ValueError):
            if not any(str(error) in str(each) for each in self.refusals):  # two checks may find the same problem
                self.refusals.append(Refusal("", str(error)))
        elif not self.refusals:
            raise error

    def ordered(self) -> list[Refusal]:
        """Return the refusals sorted by flag: only the first of each flag, since later ones follow from it."""
        first: dict[str, Refusal] = {}
        for each in self.refusals:
            first.setdefault(each.flag or str(each), each)
        return sorted(first.values(), key=lambda each: each.flag)

    def shown(self) -> str:
        """Return a single refusal as a line of text, several as a list of up to `MOST_SHOWN`."""
        refusals = self.ordered()
        if len(refusals) == 1:
            return str(refusals[0])
        more = len(refusals) - MOST_SHOWN
        lines = [f"{len(refusals)} things are wrong:", *map(str, refusals[:MOST_SHOWN])]
        return "\n  ".join(lines + ([f"and {more} more"] if more > 0 else []))


def did_you_mean(name: str, known: Iterable[str], how: str = " (did you mean {}?)") -> str:
    """Return a hint at the known name nearest to `name`, or "" if none is near.

    >>> did_you_mean("sheer", ["uniform", "shear"]), did_you_mean("x", ["shear"])
    (' (did you mean shear?)', '')
    """
    near = difflib.get_close_matches(name, list(known), 1, _NEAR)
    return how.format(near[0]) if near else ""
