"""Draw docs/images/house.svg: the rooms of the package and the folders of train/, with an arrow for each import.

python scripts/house_picture.py          # again after a change of rooms or of what they import
"""

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/unit/house"), str(ROOT / "tests/unit")]
from test_rooms import MODULES, imports, room_of, train_folder_of  # noqa: E402

PICTURE = ROOT / "docs/images/house.svg"
# Columns, chosen by hand so that few arrows cross; a row follows from the imports.
ROOMS = {"config": 1.4, "transport": 1.4, "kernels": 1.4, "credit": 1.4, "tasks": 0.3, "lab": 0.3, "cli": 0.9}
ROOMS |= {"rollouts": 1.3, "diagnosis": 1.3, "train": 2.1, "integrations": 2.3, "evaluation": 2.7, "preflight": 2.9}
ROOMS |= {"sampling": 2.6, "data": 2.6, "rewards": 2.6, "memory": 3.8, "line": 3.8, "doctor": 4.7, "report": 3.8}
FOLDERS = {"": 0.1, "screen": 1.2, "nodes": 0.1, "checkpoints": 1.2, "sampling": 0.1, "experience": 0.1, "update": 0.1}
FOLDERS |= {"run": 1.2, "cpu": 0.1, "start": 0.6}
WIDTH, HEIGHT, STEP_X, STEP_Y = 104, 30, 122, 64  # of a box, and from box to box
STYLE = """<style>
text { font: 14px sans-serif; text-anchor: middle; fill: #222 }
rect { fill: #eef3fa; stroke: #6b7f99 }
path { fill: none; stroke: #6b7f99; stroke-width: 1.3 } marker path { fill: #6b7f99 }
@media (prefers-color-scheme: dark) { text { fill: #e6e6e6 } rect { fill: #26303d } }
text.title { font-weight: bold; fill: #6b7f99 }
</style>
<marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0 0L8 4L0 8z"/></marker>"""


def graph(place, inside) -> dict[str, set[str]]:
    """Return the places that each place imports from."""
    arrows: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        if inside(module):
            names = {place(name) for name, _ in imports(module, path.read_text()) if inside(name)}
            arrows.setdefault(place(module), set()).update(names - {place(module)})
    return arrows


def without_implied(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """Leave out each arrow that a longer way implies."""

    def below(name: str) -> set[str]:
        return arrows[name].union(*(below(other) for other in arrows[name]))

    return {
        name: {other for other in others if not any(other in below(between) for between in others)}
        for name, others in arrows.items()
    }


def row(arrows: dict[str, set[str]], name: str) -> int:
    return 1 + max((row(arrows, other) for other in arrows[name]), default=-1)


def boxes(arrows: dict[str, set[str]], columns: dict[str, float], left: int, top: int, title: str) -> Iterator[str]:
    """Yield a panel's arrows, then its boxes over them."""
    rows, at, ends = {name: row(arrows, name) for name in arrows}, {}, {}
    for name in sorted(arrows, key=lambda name: (columns.get(name, 9), name)):
        number = rows[name]
        ends[number] = max(columns.get(name, 0), ends.get(number, -1) + 0.9)  # no box lies over another
        at[name] = round(left + ends[number] * STEP_X), top + (max(rows.values()) - number) * STEP_Y
    for name, (x, y) in at.items():
        for x_end, y_end in (at[other] for other in sorted(arrows[name])):
            bend = STEP_Y // 2
            curve = f"M{x} {y + HEIGHT}C{x} {y + HEIGHT + bend} {x_end} {y_end - bend} {x_end} {y_end}"
            yield f'<path d="{curve}" marker-end="url(#end)"/>'
    for name, (x, y) in at.items():
        yield f'<rect x="{x - WIDTH // 2}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
        yield f'<text x="{x}" y="{y + 20}">{name or "hooks.py, ..."}</text>'
    yield f'<text class="title" x="{left + round(max(columns.values()) / 2 * STEP_X)}" y="{top - 20}">{title}</text>'


def picture() -> str:
    rooms = without_implied(graph(room_of, lambda name: name in MODULES and room_of(name) != ""))
    folders = without_implied(graph(train_folder_of, lambda name: name in MODULES and room_of(name) == "train"))
    right = round(60 + (max(ROOMS.values()) + 0.9) * STEP_X)
    floors = 1 + max(row(panel, name) for panel in (rooms, folders) for name in panel)
    size = right + round((max(FOLDERS.values()) + 0.5) * STEP_X), 40 + floors * STEP_Y
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}">',
            *(STYLE, *boxes(rooms, ROOMS, 60, 40, "openrlhf_shear/"), *boxes(folders, FOLDERS, right, 40, "train/")),
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(picture())
