"""The paper's tables: methods x benchmarks under each backbone, one table a task, as Markdown, CSV and LaTeX.

Values are percent with one decimal, mean ± sample std over seeds; the best of a column is bold. A cell that rests on
fewer seeds than its row says so, and one without any is `-`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from openrlhf_shear.evaluation.comparison.cells import Section, Select, choose
from openrlhf_shear.evaluation.comparison.runs import BENCHMARKS, UNKNOWN, Run
from openrlhf_shear.report.estimates import Stat, stat

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
        shown = {other.label: _tenths(other.cells[column]) for other in self.rows if other.cells[column]}
        return row.label in shown and len(shown) > 1 and shown[row.label] == max(shown.values())


@dataclass(frozen=True)
class Table:
    """One task. `columns` are benchmarks, in the paper's order, then "average"."""

    task: str
    columns: tuple[str, ...]
    blocks: tuple[Block, ...]

    @property
    def seeds(self) -> int:
        return max(row.seeds for block in self.blocks for row in block.rows)


def make_tables(sections: Iterable[Section], select: Select) -> list[Table]:
    """One table for each task that has an evaluation."""
    tasks: dict[str, list[Section]] = {}
    for section in sections:
        if any(run.evaluations for variant in section.variants for run in variant.runs):
            tasks.setdefault(section.task, []).append(section)
    return [_table(task, found, select) for task, found in tasks.items()]


def _table(task: str, sections: list[Section], select: Select) -> Table:
    runs = [run for section in sections for variant in section.variants for run in variant.runs]
    names = {name for run in runs for found in run.evaluations for name in found.scores}
    order = list(BENCHMARKS)
    columns = (*sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name)), AVERAGE)
    blocks = (Block(section.model, tuple(_block_rows(section, select, columns))) for section in sections)
    return Table(task, columns, tuple(blocks))


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
    chosen = [found for run in runs if (found := choose(run, select))]
    cells = {name: stat(found.scores[name] for found in chosen if name in found.scores) for name in columns[:-1]}
    cells[AVERAGE] = stat(found.average for run in averaged if (found := choose(run, select)))
    return Row(label, len(runs), cells)


def title(column: str) -> str:
    return "Avg" if column == AVERAGE else BENCHMARKS.get(column, column)


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


def _tenths(value: Stat) -> float:
    return float(f"{100 * value.mean:.1f}")


def number(value: Stat | None, seeds: int) -> str:
    """A cell in words.

    >>> number(Stat(0.4916, 0.0131, 3), 3), number(Stat(0.4916, 0.0131, 2), 3), number(None, 3)
    ('49.2 ± 1.3', '49.2 ± 1.3 (n=2)', '-')
    """
    if value is None:
        return "-"
    spread = "" if value.std is None else f" ± {100 * value.std:.1f}"
    return f"{100 * value.mean:.1f}{spread}{_fewer(value, seeds)}"


def _fewer(value: Stat, seeds: int) -> str:
    return "" if value.n == seeds else f" (n={value.n})"


def markdown(table: Table) -> str:
    def bold(text: str, best: bool) -> str:
        return f"**{text}**" if best else text

    lines = []
    for block in table.blocks:
        header = ["Method", *map(title, table.columns), "Seeds"]
        lines += [f"**{_markdown_text(model_title(block.model))}**", "", _line(map(_markdown_text, header))]
        lines.append(_line([":--"] + ["--:"] * (len(header) - 1)))
        for row in block.rows:
            cells = [bold(number(row.cells[name], row.seeds), block.is_best(row, name)) for name in table.columns]
            lines.append(_line([_markdown_text(row.label), *cells, str(row.seeds)]))
        lines.append("")
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown_text(text: str) -> str:
    return _escaped(text, lambda sign: f"\\{sign}", "\\`*_|<>&[]#~")


def latex(table: Table) -> str:
    """A `table*` in the paper's form; needs booktabs and xcolor."""
    width = len(table.columns) + 1
    over = rf"mean $\pm$ sample std over {table.seeds} seeds" if table.seeds > 1 else "one seed"
    lines = [
        r"% needs \usepackage{booktabs,xcolor}",
        r"\providecommand{\std}[1]{{\color{gray}{\scriptsize $\pm$#1}}}",
        r"\begin{table*}[t]",
        r"\centering\small\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{_latex_text(task_title(table.task))}. Percent, {over}.}}",
        rf"\begin{{tabular}}{{l{'c' * len(table.columns)}}}",
        r"\toprule",
        " & ".join(["Method", *(_latex_text(title(name)) for name in table.columns)]) + r" \\",
    ]
    for block in table.blocks:
        name = _latex_text(model_title(block.model))
        lines += [r"\midrule", rf"\multicolumn{{{width}}}{{c}}{{\textbf{{{name}}}}} \\", r"\midrule"]
        for row in block.rows:
            seeds = "" if row.seeds == table.seeds else f" ($n={row.seeds}$)"
            cells = [_latex_number(row.cells[name], row.seeds, block.is_best(row, name)) for name in table.columns]
            lines.append(" & ".join([_latex_text(row.label) + seeds, *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table*}", ""])


def _latex_number(value: Stat | None, seeds: int, best: bool) -> str:
    if value is None:
        return "-"
    mean = f"{100 * value.mean:.1f}"
    spread = "" if value.std is None else rf"\std{{{100 * value.std:.1f}}}"
    return (rf"\textbf{{{mean}}}" if best else mean) + spread + _fewer(value, seeds)


def _latex_text(text: str) -> str:
    words = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    words |= {"<": r"\textless{}", ">": r"\textgreater{}"}
    return _escaped(text, lambda sign: words.get(sign, f"\\{sign}"), "\\~^<>&%$#_{}")


def _escaped(text: str, escape: Callable[[str], str], signs: str) -> str:
    return "".join(escape(sign) if sign in signs else sign for sign in " ".join(text.split()))


def to_csv(table: Table) -> str:
    """One line a row; percent unrounded, empty where there is no value."""
    written = io.StringIO(newline="")
    parts = [f"{name}_{part}" for name in table.columns for part in ("mean", "std", "n")]
    out = csv.writer(written, lineterminator="\n")
    out.writerow(["task", "model", "method", "seeds", *parts])
    for block in table.blocks:
        for row in block.rows:
            values = [value for name in table.columns for value in _percents(row.cells[name])]
            out.writerow([table.task, block.model, row.label, row.seeds, *values])
    return written.getvalue()


def _percents(value: Stat | None) -> tuple:
    if value is None:
        return "", "", 0
    return 100 * value.mean, "" if value.std is None else 100 * value.std, value.n
