"""Tables of cases: `tests/data/cases/ROOM.yaml` has one for each test, with the names of its parameters."""

from pathlib import Path

import yaml

CASES = Path(__file__).parents[1] / "data" / "cases"


def cases(room: str, test: str) -> tuple[str, list]:
    """Return the arguments of `pytest.mark.parametrize`."""
    table = yaml.safe_load((CASES / f"{room}.yaml").read_text(encoding="utf-8"))[test]
    return table["names"], table["rows"]
