"""The README's badges, from pyproject.toml and the package: local files, so that no page asks a server.

python scripts/badges.py      rewrites them; tests/unit/house/test_readme.py compares
"""

import re
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs/images/badges"
HEIGHT, LETTER, MARGIN = 20, 6.4, 8  # pixels; a letter is an average
SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img" aria-label="{label}: {value}">
<rect width="{width}" height="{height}" rx="3" fill="#4c5560"/>
<path fill="{colour}" d="M{left} 0h{middle}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3H{left}z"/>
<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="{label_x}" y="14">{label}</text><text x="{value_x}" y="14">{value}</text></g>
</svg>
"""


def badges() -> dict[str, str]:
    """Return the SVG of each badge by its file's stem."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = re.search(r'__version__ = "(.*?)"', (ROOT / "openrlhf_shear/__init__.py").read_text())[1]
    named = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each) for each in project["classifiers"]]
    return {
        "version": _badge("version", version, "#0072b2"),
        "python": _badge("Python", " | ".join(each[1] for each in named if each), "#0072b2"),
        "licence": _badge("licence", project["license"], "#00805d"),
        "paper": _badge("arXiv", project["urls"]["Paper"].rpartition("/")[2], "#a8508a"),
        "tried": _badge("tried on", "CPU; no GPU yet", "#c77800"),
    }


def _badge(label: str, value: str, colour: str) -> str:
    left, right = (round(len(text) * LETTER + 2 * MARGIN) for text in (label, value))
    places = {"label_x": left / 2, "value_x": left + right / 2, "left": left, "middle": right - 3}
    texts = {"label": escape(label), "value": escape(value), "colour": colour}
    return SVG.format(width=left + right, height=HEIGHT, **places, **texts)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, svg in badges().items():
        (FOLDER / f"{name}.svg").write_text(svg)
    print(f"{FOLDER.relative_to(ROOT)}: written")
