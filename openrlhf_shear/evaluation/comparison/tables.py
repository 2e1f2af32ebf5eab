"""The paper's tables: methods x benchmarks under each backbone, one table a task, as Markdown, CSV and LaTeX.

Values are percent with one decimal, mean ± sample std over seeds; the best of a column is bold. A cell that rests on
fewer seeds than its row says so, and one without any is `-`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from openrlhf_shear.evaluation.comparison.cells import TITLES, Section, Select, choose
from openrlhf_shear.evaluation.comparison.runs import UNKNOWN, Run
from openrlhf_shear.report.estimates import Stat, stat
from openrlhf_shear.report.tables import MARKUP, Cell, Table, csv_text, latex_text

AVERAGE = "average"
BASE = "Base model"


@dataclass(frozen=True)
class Row:
    """A method: `cells` holds a `Stat` (fractions) or None for each of the table's columns."""

    label: str
    seeds: int
    cells: dict[str, Stat | None]


@dataclass(frozen=True)
class Block:
    """The rows of one backbone."""

    model: str
    rows: tuple[Row, ...]

    def is_best(self, row: Row, column: str) -> bool:
        """Whether a value shows as the highest of its column, among two or more."""
        shown = {o.label: float(_percent(o.cells[column].mean)) for o in self.rows if o.cells[column]}
        return row.label in shown and len(shown) > 1 and shown[row.label] == max(shown.values())


@dataclass(frozen=True)
class Scores:
    """One task. `columns` are benchmarks, in the paper's order, then "average"."""

    task: str
    columns: tuple[str, ...]
    blocks: tuple[Block, ...]

    @property
    def seeds(self) -> int:
        return max(row.seeds for block in self.blocks for row in block.rows)


def make_scores(sections: Iterable[Section], select: Select) -> list[Scores]:
    """One table for each task that has an evaluation."""
    tasks: dict[str, list[Section]] = {}
    for section in sections:
        if any(run.evaluations for variant in section.variants for run in variant.runs):
            tasks.setdefault(section.task, []).append(section)
    return [_scores(task, of_task, select) for task, of_task in tasks.items()]


def _scores(task: str, sections: list[Section], select: Select) -> Scores:
    runs = [run for section in sections for variant in section.variants for run in variant.runs]
    names = {name for run in runs for evaluation in run.evaluations for name in evaluation.scores}
    order = list(TITLES)
    columns = (*sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name)), AVERAGE)
    blocks = (Block(section.model, tuple(_block_rows(section, select, columns))) for section in sections)
    return Scores(task, columns, tuple(blocks))


def _block_rows(section: Section, select: Select, columns: tuple[str, ...]) -> Iterable[Row]:
    bases: dict[int | None, Run] = {}  # the base model is the same in every method: one of its evaluations a seed
    for run in (run for variant in section.variants for run in section.averaged(variant)):
        if run.evaluations[0].step == 0:
            bases.setdefault(run.seed, run)
    if bases:
        yield _row(BASE, tuple(bases.values()), tuple(bases.values()), 0, columns)
    for label, variant in section.rows.items():
        yield _row(label, variant.runs, section.averaged(variant), select, columns)


def _row(label: str, runs: tuple[Run, ...], averaged: tuple[Run, ...], select: Select, columns: tuple) -> Row:
    chosen = [one for run in runs if (one := choose(run, select))]
    cells = {name: stat(one.scores[name] for one in chosen if name in one.scores) for name in columns[:-1]}
    cells[AVERAGE] = stat(one.average for run in averaged if (one := choose(run, select)))
    return Row(label, len(runs), cells)


def model_title(model: str) -> str:
    """A hub id without its owner; a path as it is.

    >>> model_title("Qwen/Qwen2.5-Math-7B"), model_title("/data/policy")
    ('Qwen2.5-Math-7B', '/data/policy')
    """
    owner, slash, name = model.partition("/")
    return name if slash and owner not in ("", ".", "..") and name and "/" not in name else model


def task_title(task: str) -> str:
    known = {"math": "Mathematical reasoning", "code": "Code generation", UNKNOWN: "Unnamed task"}
    return known.get(task, task)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}"


def number(value: Stat | None, seeds: int, mean: str = "{}", spread: str = " ± {}") -> str:
    """A cell in words; `mean` and `spread` are the forms of its parts.

    >>> number(Stat(0.4916, 0.0131, 3), 3), number(Stat(0.4916, 0.0131, 2), 3), number(None, 3)
    ('49.2 ± 1.3', '49.2 ± 1.3 (n=2)', '-')
    """
    if value is None:
        return "-"
    around = "" if value.std is None else spread.format(_percent(value.std))
    return mean.format(_percent(value.mean)) + around + ("" if value.n == seeds else f" (n={value.n})")


def table_of(scores: Scores) -> Table:
    """The table as it is read: a section a backbone, the number of seeds in the last column."""
    rows, sections = [], {}
    for block in scores.blocks:
        sections[len(rows)] = model_title(block.model)
        for row in block.rows:
            seeds = "" if row.seeds == scores.seeds else f" ($n={row.seeds}$)"
            label = Cell(row.label, latex=latex_text(row.label) + seeds)
            rows.append((label, *(_cell(block, row, name) for name in scores.columns), str(row.seeds)))
    titles = TITLES | {AVERAGE: "Avg"}
    header = ("Method", *(titles.get(name, name) for name in scores.columns), "Seeds")
    return Table(task_title(scores.task), header, rows, sections=sections)


def _cell(block: Block, row: Row, name: str) -> Cell:
    value, best = row.cells[name], block.is_best(row, name)
    latex = number(value, row.seeds, r"\textbf{{{}}}" if best else "{}", r"\std{{{}}}")
    return Cell(number(value, row.seeds), "bold" if best else "", latex)


def markdown(scores: Scores) -> str:
    return table_of(scores).to_markdown(MARKUP, (":--", "--:")) + "\n"


def latex(scores: Scores) -> str:
    """A `table*` in the paper's form; needs booktabs and xcolor. Rows of fewer seeds say so in place of a column."""
    over = rf"mean $\pm$ sample std over {scores.seeds} seeds" if scores.seeds > 1 else "one seed"
    whole = table_of(scores)
    table = replace(whole, header=whole.header[:-1], rows=[row[:-1] for row in whole.rows])
    needs = r"% needs \usepackage{booktabs,xcolor}"
    std = r"\providecommand{\std}[1]{{\color{gray}{\scriptsize $\pm$#1}}}"
    return f"{needs}\n{std}\n{table.to_latex(f'. Percent, {over}.')}"


def to_csv(scores: Scores) -> str:
    """One line a row; percent unrounded, empty where there is no value."""
    rows = []
    for block in scores.blocks:
        for row in block.rows:
            cells = [row.cells[name] for name in scores.columns]
            parts = [part for cell in cells for part in numbers(cell and cell.percent)]
            rows.append((scores.task, block.model, row.label, row.seeds, *parts))
    header = [f"{name}_{part}" for name in scores.columns for part in ("mean", "std", "n")]
    return csv_text(["task", "model", "method", "seeds", *header], rows)


def numbers(value: Stat | None) -> tuple:
    """Mean, std (empty for one seed) and number of seeds, as in CSV files."""
    return ("", "", 0) if value is None else (value.mean, "" if value.std is None else value.std, value.n)
