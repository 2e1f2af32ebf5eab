"""Findings of a tool, written and printed: settings, tables, notes and pictures as results.json, results.md, figures/.

A tool's findings are a dataclass beneath `Findings`, with its own numbers in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from math import isfinite
from pathlib import Path
from typing import ClassVar

from tqdm import tqdm

from openrlhf_shear.report.figures import Picture, render
from openrlhf_shear.report.tables import Table, csv_text, print_tables


@dataclass(frozen=True)
class Omission:
    """A kind of picture that was not made."""

    heading: str
    reason: str


@dataclass(frozen=True)
class Findings:
    """What a tool came to.

    Attributes:
        TITLE: of results.md.
        FIGURES: names of all pictures that such findings can have.
        settings: that they were made with.
        omitted: kinds of pictures that they do not have, and why.
    """

    TITLE: ClassVar[str]
    FIGURES: ClassVar[tuple[str, ...]]

    settings: dict
    pictures: list[Picture]
    omitted: list[Omission]

    @property
    def tables(self) -> list[Table]:
        """In the order of a report."""
        raise NotImplementedError

    @property
    def notes(self) -> list[str]:
        """Plain words below the tables, beside the tables' own."""
        return []

    def to_json(self) -> dict:
        """Strict JSON."""
        raise NotImplementedError


def made_and_omitted(drawn: Iterable[Picture | Omission]) -> dict[str, list]:
    """Both by the names of their fields in `Findings`."""
    drawn = list(drawn)
    kinds = {"pictures": Picture, "omitted": Omission}
    return {name: [one for one in drawn if isinstance(one, kind)] for name, kind in kinds.items()}


def write_findings(findings: Findings, folder: str | Path) -> list[Path]:
    """Write results.json, results.md and the pictures (.png, .svg, .csv) below figures/; returns their paths.

    The files of pictures that such findings can have and these do not are removed. Other files stay.
    """
    folder = Path(folder)

    def files() -> Iterator[tuple[str, str | bytes]]:
        yield "results.json", json.dumps(findings.to_json(), indent=1, allow_nan=False) + "\n"
        yield "results.md", _markdown(findings)
        for picture in tqdm(findings.pictures, desc="pictures", disable=None):
            yield from ((f"figures/{name}", content) for name, content in picture_files(picture))

    written = write_files(folder, files())
    for stale in set(findings.FIGURES) - {picture.name for picture in findings.pictures}:
        for kind in ("png", "svg", "csv"):
            (folder / f"figures/{stale}.{kind}").unlink(missing_ok=True)
    return written


def picture_files(picture: Picture) -> Iterator[tuple[str, str | bytes]]:
    """Name and content of a picture's files: .png, .svg, and .csv with its numbers."""
    for kind in ("png", "svg"):
        yield f"{picture.name}.{kind}", render(picture, kind)
    yield f"{picture.name}.csv", csv_text(picture.header, picture.rows)


def write_files(folder: str | Path, files: Iterable[tuple[str, str | bytes]]) -> list[Path]:
    """Write (name, content) below a folder, as they come; returns their paths."""
    written = []
    for name, content in files:
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        written.append(path)
    return written


def print_findings(findings: Findings) -> None:
    """The tables and all notes, on stdout."""
    print_tables(findings.tables, [*findings.notes, *_missing(findings)], lines=True)


def plain(value: object) -> object:
    """As strict JSON takes it: None for a number that is not finite.

    Of dataclasses the fields that are not compared are left out, such as tables that are there for pictures.
    """
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.compare}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _markdown(findings: Findings) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in findings.settings.items())
    parts = [f"# {findings.TITLE}", *([settings] if settings else [])]
    for table in findings.tables:
        parts += [*([f"## {table.title}"] if table.title else []), table.to_markdown(), *table.notes]
    if findings.notes:
        parts += ["\n" + findings.notes[0], *findings.notes[1:]]  # apart from what belongs to a table
    return "\n\n".join([*parts, *_missing(findings)]) + "\n"


def _missing(findings: Findings) -> list[str]:
    return [f"No picture {one.heading!r}: {one.reason}." for one in findings.omitted]
