"""The reward files of this package that flags can name. Light: each process of a reward file imports it."""

from dataclasses import dataclass
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class RewardFile:
    """A file with a `reward_func`, below this package; `about` is a clause for `--help`."""

    place: str
    about: str

    @property
    def path(self) -> str:
        return str(_PACKAGE / self.place)


FILES = {
    "last_number": RewardFile(
        "rewards/last_number.py", "compares the last number of the response with that of the label"
    ),
    "arithmetic": RewardFile("tasks/arithmetic/arithmetic.py", "the reward of the built-in task"),
}


def file_of(reward: str | None) -> str | None:
    """Return the path of a reward file of this package, given its name; anything else unchanged."""
    return FILES[reward].path if reward in FILES else reward


def here(path: str) -> str:
    """Return this node's copy of a reward file of this package; any other path unchanged.

    `ray job submit` unpacks a checkout into another folder on each node.
    """
    parts = Path(path).parts
    inside = {(_PACKAGE.name, *Path(file.place).parts): file.path for file in FILES.values()}
    return next((own for ends, own in inside.items() if parts[-len(ends) :] == ends), path)
