"""Tables of cases: `tests/data/cases/ROOM.yaml` has them by the test, or by the name that a test file gives them."""

from pathlib import Path

import yaml

CASES = Path(__file__).parents[1] / "data" / "cases"


def table(room: str, name: str):
    return yaml.safe_load((CASES / f"{room}.yaml").read_text(encoding="utf-8"))[name]


def cases(room: str, test: str) -> tuple[str, list]:
    """Return the arguments of `pytest.mark.parametrize`: the names of parameters, and rows of their values."""
    return table(room, test)["names"], table(room, test)["rows"]
