"""The tables of `tests/data/maths_answers.toml`."""

import tomllib
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
TABLES = tomllib.loads((DATA / "maths_answers.toml").read_text(encoding="utf-8"))


def cases(table: str) -> list[list[str]]:
    """Return the parts of each line."""
    return [line.split(" ~ ") for line in table.strip().splitlines()]
