"""Files of a report: tables, pictures, and an HTML page that holds them all."""

import base64
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from openrlhf_shear.evaluation.comparison.cells import Select, choose, noted, sections
from openrlhf_shear.evaluation.comparison.pictures import make_pictures
from openrlhf_shear.evaluation.comparison.runs import Run
from openrlhf_shear.evaluation.comparison.tables import Scores, latex, make_scores, markdown, progress, rests_on, to_csv
from openrlhf_shear.report import figures
from openrlhf_shear.report.figures import Picture
from openrlhf_shear.report.findings import Omission, picture_files, write_files
from openrlhf_shear.report.page import render, sorting
from openrlhf_shear.report.tables import MARKUP, Table, csv_text

SELECTIONS = {
    "best": "Each seed stands with the checkpoint whose benchmark average is the best of its evaluated steps "
    "(ties: the earlier); every benchmark is read at that checkpoint.",
    "last": "Each seed stands with its last evaluated checkpoint.",
}


@dataclass(frozen=True)
class RunsReport:
    """The tables and pictures of the runs, ready to be written."""

    runs: tuple[Run, ...]
    progress: Table | None  # first and last values of each trained run
    tables: list[Scores]
    pictures: list[Picture]
    omitted: list[Omission]
    select: Select


def make_report(runs: Iterable[Run], select: Select = "best") -> RunsReport:
    """Make tables and pictures over runs.

    Args:
        select: the "best" or "last" checkpoint of each seed, or the checkpoint at a step.

    Raises:
        ReportError: runs that would share a cell differ in more than their seed.
    """
    runs = tuple(noted(runs))
    grouped = sections(runs)
    return RunsReport(runs, progress(runs), make_scores(grouped, select), *make_pictures(grouped, select), select)


def write_report(report: RunsReport, folder: str | Path, drawing: Callable[[list], Iterable] = iter) -> list[Path]:
    """Write every table (.md, .csv, .tex) and picture (.png, .svg, .csv) and `index.html`; return their paths.

    `drawing` takes the list of pictures and yields them, e.g. under a progress bar.
    """

    def files() -> Iterator[tuple[str, str | bytes]]:
        if table := report.progress:
            yield "first_and_last.md", f"{table.to_markdown(MARKUP)}\n"
            yield "first_and_last.csv", csv_text(table.header, table.rows)
        for i, scores in enumerate(report.tables, 1):
            stem = f"table_{scores.task}" if scores.task.isidentifier() else f"table_{i}"
            for ending, form in (("md", markdown), ("csv", to_csv), ("tex", latex)):
                yield f"{stem}.{ending}", form(scores)
        embedded = []
        for picture in drawing(report.pictures):
            yield from picture_files(picture)
            embedded.append(_embed(picture))
        yield "index.html", _page(report, embedded)

    return write_files(folder, files())


def _embed(picture: Picture) -> dict:
    def uri(dark: bool) -> str:
        svg = figures.render(picture, "svg", dark, titled=False)  # the page shows the title as text
        return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()

    return {
        **{name: getattr(picture, name) for name in ("heading", "place", "caption", "header")},
        "file": picture.name,
        "rows": [[f"{value:.3f}" if isinstance(value, float) else value for value in row] for row in picture.rows],
        "width": round(100 * figures.WIDTH),
        "height": round(100 * picture.height),
        "light": uri(dark=False),
        "dark": uri(dark=True),
    }


def _page(report: RunsReport, embedded: list[dict]) -> str:
    """Return the HTML page with these `embedded` pictures. All text in it is escaped."""
    count = len(report.runs)
    template, style = ((Path(__file__).parent / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css"))
    return render(
        template,
        style=style,
        script=sorting(),
        heading=f"Report over {count} run{'s' if count > 1 else ''}",
        selection=SELECTIONS.get(report.select, f"Each seed stands with its evaluation at step {report.select}."),
        progress=report.progress,
        tables=[(scores, rests_on(scores)) for scores in report.tables],
        pictures=embedded,
        omitted=report.omitted,
        run_header=("Run", "Method", "Backbone", "Task", "Seed", "G", "Step", "Average (%)", "Seconds a step", "Notes"),
        runs=[_run(run, report.select) for run in report.runs],
    )


def _run(run: Run, select: Select) -> dict:
    chosen, seconds = choose(run, select), run.seconds_per_step
    at = (chosen.step, f"{100 * chosen.average:.1f}") if chosen else (None, None)
    cells = [run.method, run.model, run.task, run.seed, run.group, *at, None if seconds is None else f"{seconds:.1f}"]
    shown = ["-" if cell is None else cell for cell in cells]
    return {"folder": str(run.folder), "cells": shown, "notes": "; ".join(run.notes)}
