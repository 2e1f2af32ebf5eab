"""How findings are written: results.json, results.md and pictures, by the diagnosis and by the credit lab."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from openrlhf_shear.report.figures import Picture, render


@dataclass(frozen=True)
class Omission:
    """A kind of picture that was not made."""

    heading: str
    reason: str


def write_findings_files(
    folder: str | Path, results: dict, markdown: str, pictures: Sequence[Picture], names: Sequence[str]
) -> list[Path]:
    """Write results.json, results.md and the pictures (.png, .svg, .csv) below figures/; returns their paths.

    Args:
        results: strict JSON.
        names: of all pictures that such findings can have; those that these do not have are removed. Other files stay.
    """
    written = []

    def write(name: str, content: str | bytes) -> None:
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        written.append(path)

    write("results.json", json.dumps(results, indent=1, allow_nan=False) + "\n")
    write("results.md", markdown)
    for picture in tqdm(pictures, desc="pictures", disable=None):
        for kind in ("png", "svg"):
            write(f"figures/{picture.name}.{kind}", render(picture, kind))
        numbers = io.StringIO(newline="")
        csv.writer(numbers, lineterminator="\n").writerows([picture.header, *picture.rows])
        write(f"figures/{picture.name}.csv", numbers.getvalue())
    for stale in set(names) - {picture.name for picture in pictures}:
        for kind in ("png", "svg", "csv"):
            (Path(folder) / f"figures/{stale}.{kind}").unlink(missing_ok=True)
    return written


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str]) -> str:
    """A Markdown table; the columns of `left` are aligned to the left, others to the right."""
    marks = ["---" if title in left else "---:" for title in header]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (header, marks, *rows)]
    return "\n".join(lines)
