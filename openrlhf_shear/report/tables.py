"""Text tables for every tool: as Markdown, CSV and LaTeX, and on the console."""

import csv
import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

MARKUP = "\\`*_|<>&[]#~"  # the signs that Markdown can read as markup
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}"} | {sign: f"\\{sign}" for sign in "&%$#_{}"}
WIDTH = 80  # columns of a console that is no terminal
FOLD = 24  # text columns may be folded to this width


@dataclass(frozen=True)
class Cell:
    """Text with a style or with separate LaTeX."""

    text: str
    style: str = ""  # "bold" is bold everywhere; other styles of Rich apply on the console only
    latex: str | None = None  # LaTeX in place of the text, not escaped
    number: float | str = ""  # to sort by on a page; "" for the text

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Table:
    """Text by column; the caller formats numbers, except in CSV files."""

    title: str
    header: Sequence[str]  # title of each column
    # cells: a `Cell`, or anything for `str`. A row may lack its last cells
    rows: Sequence[Sequence[object]]
    notes: Sequence[str] = ()  # plain text below it
    left: Sequence[str] = ()  # titles of further left-aligned columns; the first column always is
    # row -> heading above it and the rows that follow; "" draws only a line
    sections: Mapping[int, str] = field(default_factory=dict)

    @property
    def is_left(self) -> list[bool]:
        """Whether each column is left-aligned."""
        return [i == 0 or title in self.left for i, title in enumerate(self.header)]

    @property
    def blocks(self) -> list[tuple[str, Sequence[Sequence[object]]]]:
        """Heading and rows of each section; the heading is "" for rows above the first section."""
        starts = sorted({0, *self.sections})
        ends = [*starts[1:], len(self.rows)]
        return [(self.sections.get(a, ""), self.rows[a:b]) for a, b in zip(starts, ends, strict=True)]

    def to_markdown(self, escaped: str = "|", marks: tuple[str, str] = ("---", "---:")) -> str:
        """Return the table without its title and notes; each section is a table below its heading.

        Args:
            escaped: the signs that get a backslash, e.g. `MARKUP` for names that users choose.
            marks: the lines below the titles of left-aligned and of right-aligned columns.
        """
        signs, under = str.maketrans({sign: f"\\{sign}" for sign in escaped}), [marks[not at] for at in self.is_left]

        def form(cell: object) -> str:
            text = _one_line(cell).translate(signs)
            return f"**{text}**" if _style(cell) == "bold" else text

        parts = []
        for heading, rows in self.blocks:
            lines = [map(form, self.header), under, *(map(form, row) for row in rows)]
            parts += [form(Cell(heading, "bold")), ""] if heading else []
            parts += [*(f"| {' | '.join(line)} |" for line in lines), ""]
        return "\n".join(parts[:-1])

    def to_latex(self, caption: str = "") -> str:
        """Return a `table*` as papers have it; needs booktabs. `caption` is LaTeX that follows the title."""
        lines = [
            r"\begin{table*}[t]",
            r"\centering\small\setlength{\tabcolsep}{4pt}",
            rf"\caption{{{latex_text(self.title)}{caption}}}",
            rf"\begin{{tabular}}{{{''.join('l' if left else 'c' for left in self.is_left)}}}",
            r"\toprule",
            _latex_line(self.header),
        ]
        for heading, rows in self.blocks:
            over = rf"\multicolumn{{{len(self.header)}}}{{c}}{{\textbf{{{latex_text(heading)}}}}} \\"
            lines += [r"\midrule", *([over, r"\midrule"] if heading else []), *map(_latex_line, rows)]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table*}", ""])


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a CSV file with line feeds; None is an empty field."""
    written = io.StringIO(newline="")
    csv.writer(written, lineterminator="\n").writerows([header, *rows])
    return written.getvalue()


def latex_text(text: str) -> str:
    r"""Return text escaped for LaTeX.

    >>> latex_text("a_b & 50%")
    'a\\_b \\& 50\\%'
    """
    return _one_line(text).translate(str.maketrans(_LATEX))


def print_tables(tables: Iterable[Table], notes: Iterable[str] = (), lines: bool = False) -> None:
    """Print tables with their notes to stdout, then further notes; `lines` draws a line below every row.

    Texts are folded, numbers are not. A table that is still too wide continues in another table with the same first
    column.
    """
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    show = partial(console.print, markup=False, highlight=False)
    for table in tables:
        for part in (*_shown(table, console.width, lines), *table.notes):
            show(part)
    for note in notes:
        show(note)


def _shown(table: Table, width: int, lines: bool) -> Iterator:
    """Yield the table as Rich shows it in `width` columns, in one or more pieces."""
    from rich.cells import cell_len
    from rich.table import Table as Shown
    from rich.text import Text

    columns = [[title, *(str(row[i]) for row in table.rows if i < len(row))] for i, title in enumerate(table.header)]
    widths = [max(cell_len(line) for text in column for line in text.split("\n")) for column in columns]
    least = [min(wide, FOLD) if left else wide for wide, left in zip(widths, table.is_left, strict=True)]
    pieces = [[0]]
    for i in range(1, len(columns)):
        if len(pieces[-1]) > 1 and 1 + sum(least[j] + 3 for j in (*pieces[-1], i)) > width:
            pieces.append([0])
        pieces[-1].append(i)
    for number, piece in enumerate(pieces):
        title = Text(table.title) if table.title and number == 0 else None
        shown = Shown(title=title, show_lines=lines)
        for i in piece:
            left = table.is_left[i]
            justify, whole = ("left" if left else "right"), not left and widths[i] <= width // 2
            shown.add_column(Text(table.header[i]), justify=justify, overflow="fold", no_wrap=whole)
        for heading, rows in table.blocks:
            shown.add_section()
            for row in [[Cell(heading, "bold")], *rows] if heading else rows:
                if number == 0 or len(row) == 1 or len(row) > piece[1]:
                    shown.add_row(*(Text(str(row[i]), style=_style(row[i])) for i in piece if i < len(row)))
        yield shown


def _latex_line(cells: Iterable[object]) -> str:
    def form(cell: object) -> str:
        if isinstance(cell, Cell) and cell.latex is not None:
            return cell.latex
        text = latex_text(str(cell))
        return rf"\textbf{{{text}}}" if _style(cell) == "bold" else text

    return " & ".join(map(form, cells)) + r" \\"


def _one_line(cell: object) -> str:
    return " ".join(str(cell).split())


def _style(cell: object) -> str:
    return cell.style if isinstance(cell, Cell) else ""
