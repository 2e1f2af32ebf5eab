"""Print the size of the house beside its goals: lines, words, commands, upward imports, the way of a command.

    python scripts/goals.py             # a table
    python scripts/goals.py --json      # one line of JSON

Lines and words are counted as `wc` counts them. It never fails: CI prints it for information.
"""

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "openrlhf_shear"
TRAIN = ("", "screen", "nodes", "checkpoints", "sampling", "experience", "update", "run", "cpu", "start")
GOALS = {  # what is counted: before (commit 3778414a), the goal
    "lines of the package": (46_947, 41_000),
    "lines of the tests": (40_436, 35_000),
    "lines of the benchmarks": (8_021, 5_500),
    "words of the docs": (72_190, 45_000),
    "commands": (18, 10),
    "arrows up inside train/": (9, 0),
    "files entered by argv": (52, 30),
    "stays of argv": (345, 120),
}


def lines(folder: str) -> int:
    return sum(file.read_bytes().count(b"\n") for file in (ROOT / folder).rglob("*.py"))


def by_room() -> dict[str, int]:
    """Return the lines of each room of the package."""
    rooms = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
    return {room: lines(f"openrlhf_shear/{room}") for room in rooms}


def arrows_up() -> int:
    """Return how many imports inside `train/` go from a folder to one on a floor above it."""

    def floor(parts: tuple[str, ...]) -> int:
        folder = parts[0] if parts and (PACKAGE / "train" / parts[0]).is_dir() else ""
        return TRAIN.index(folder)

    found = 0
    for file in (PACKAGE / "train").rglob("*.py"):
        mine = floor(file.relative_to(PACKAGE / "train").parts[:-1])
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("openrlhf_shear.train"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                found += sum(floor(tuple(name.split(".")[2:])) > mine for name in names)
    return found


def way_of_argv() -> tuple[int, int] | None:
    """Return the files that a dry run enters and its stays in them; None if it cannot be run here."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/argv_stays.py"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    found = next((json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")), None)
    return found and (found["files"], found["stays"])


def measured() -> dict[str, int | None]:
    """Return today's value for each of `GOALS`; None for what cannot be counted here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    words = sum(len(page.read_text(encoding="utf-8").split()) for page in (ROOT / "docs").rglob("*.md"))
    files, stays = way_of_argv() or (None, None)
    sizes = (lines("openrlhf_shear"), lines("tests"), lines("benchmarks"), words, len(project["scripts"]))
    return dict(zip(GOALS, (*sizes, arrows_up(), files, stays), strict=True))


def main() -> None:
    values = measured()
    if "--json" in sys.argv[1:]:
        print(json.dumps({"values": values, "rooms": by_room()}))
        return
    print(f"{'':26}{'3778414a':>10}{'now':>10}{'goal':>10}")
    for name, (before, goal) in GOALS.items():
        print(f"{name:26}{before:>10,}{'?' if values[name] is None else format(values[name], ','):>10}{goal:>10,}")
    print("rooms: " + ", ".join(f"{room} {count:,}" for room, count in by_room().items()))


if __name__ == "__main__":
    main()
