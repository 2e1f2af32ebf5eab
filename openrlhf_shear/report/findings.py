"""Findings of a tool and how they are written and printed: results.json, results.md and figures/."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from math import isfinite
from pathlib import Path

from tqdm import tqdm

from openrlhf_shear.report.figures import Picture, render
from openrlhf_shear.report.tables import Table, csv_text, print_tables
from openrlhf_shear.report.tools import INSTALL_TOOLS, installed


@dataclass(frozen=True)
class Omission:
    """A picture that was not made, and why; `name` is the stem of the files that it would have had."""

    heading: str
    reason: str
    name: str = ""


@dataclass(frozen=True)
class Results:
    """The results of a tool: settings, tables, notes and pictures."""

    title: str  # of results.md
    results: dict  # for results.json, as `plain` takes them; results.md shows its "settings" too
    tables: list[Table]  # in the order of a report
    notes: list[str]  # plain text below the tables, after the tables' own notes
    pictures: list[Picture]
    omitted: list[Omission]
    verdict: Sequence[str] = ()  # summary lines above the tables


def apart(drawn: Iterable[Picture | Omission]) -> tuple[list[Picture], list[Omission]]:
    """Split into the pictures and the omissions."""
    drawn = list(drawn)
    return tuple([item for item in drawn if isinstance(item, kind)] for kind in (Picture, Omission))


def write_findings(findings: Results, folder: str | Path) -> list[Path]:
    """Write results.json, results.md and the pictures (.png, .svg, .csv) below figures/; return their paths.

    Remove files of earlier findings' pictures that are now omitted. Other files stay.
    """
    if findings.pictures and not installed("matplotlib"):
        print(f"pictures are written as numbers alone: matplotlib is not installed; {INSTALL_TOOLS}", file=sys.stderr)

    def files() -> Iterator[tuple[str, str | bytes]]:
        yield "results.json", json.dumps(plain(findings.results), indent=1, allow_nan=False) + "\n"
        yield "results.md", _markdown(findings)
        for picture in tqdm(findings.pictures, desc="pictures", disable=None):
            yield from ((f"figures/{name}", content) for name, content in picture_files(picture))

    written = write_files(folder, files())
    for omission in findings.omitted:
        for kind in ("png", "svg", "csv"):
            (Path(folder) / f"figures/{omission.name}.{kind}").unlink(missing_ok=True)
    return written


def picture_files(picture: Picture) -> Iterator[tuple[str, str | bytes]]:
    """Yield name and content of a picture's files: .png, .svg and .csv (its numbers); .csv alone without matplotlib."""
    for kind in ("png", "svg") if installed("matplotlib") else ():
        yield f"{picture.name}.{kind}", render(picture, kind)
    yield f"{picture.name}.csv", csv_text(picture.header, picture.rows)


def write_files(folder: str | Path, files: Iterable[tuple[str, str | bytes]]) -> list[Path]:
    """Write (name, content) pairs below a folder, as they come; return their paths."""
    written = []
    for name, content in files:
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        written.append(path)
    return written


def print_findings(findings: Results) -> None:
    """Print the tables, all notes, and last the verdict to stdout."""
    print_tables(findings.tables, [*findings.notes, *_missing(findings)], lines=True)
    if findings.verdict:
        print("", *findings.verdict, sep="\n")


def plain(value: object) -> object:
    """Return a value as strict JSON takes it: None for a number that is not finite, no field that `repr` hides."""
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value) if field.repr}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _markdown(findings: Results) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in findings.results["settings"].items())
    parts = [f"# {findings.title}", *([settings] if settings else [])]
    parts += ["```text\n" + "\n".join(findings.verdict) + "\n```"] if findings.verdict else []
    for table in findings.tables:
        parts += [*([f"## {table.title}"] if table.title else []), table.to_markdown(), *table.notes]
    if findings.notes:
        parts += ["\n" + findings.notes[0], *findings.notes[1:]]  # a blank line apart from the tables' own notes
    return "\n\n".join([*parts, *_missing(findings)]) + "\n"


def _missing(findings: Results) -> list[str]:
    return [f"No picture {omission.heading!r}: {omission.reason}." for omission in findings.omitted]
