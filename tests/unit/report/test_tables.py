"""The table writer: one table as Markdown, CSV, LaTeX and on the console, with signs that these read as markup."""

import csv
import io

import measure

from openrlhf_shear.report.tables import MARKUP, Cell, Table, csv_text, print_tables


def table(**changes):
    rows = [("a|b_c", Cell("1.5", "bold"), "50%"), ("[d]", "2", Cell("x", latex=r"\std{x}"))]
    made = {"title": "R&D", "header": ("What", "Value", "Why"), "rows": rows, "notes": ("Plain.",), "left": ("Why",)}
    return Table(**{**made, **changes})


def test_markdown_aligns_escapes_and_marks_bold_cells():
    assert table().to_markdown() == (
        "| What | Value | Why |\n| --- | ---: | --- |\n| a\\|b_c | **1.5** | 50% |\n| [d] | 2 | x |"
    )
    marked = table().to_markdown(MARKUP, (":--", "--:"))
    assert "| :-- | --: | :-- |\n| a\\|b\\_c | **1.5** |" in marked and "| \\[d\\] |" in marked


def test_sections_are_tables_of_their_own_in_markdown_and_one_in_latex():
    both = table(sections={0: "one_model", 1: "two"})
    assert both.to_markdown().split("\n\n")[2].splitlines()[-1] == "**two**"
    assert both.to_markdown().count("| What |") == 2
    assert both.to_latex().count(r"\midrule") == 4 and both.to_latex().count("What") == 1
    assert r"\multicolumn{3}{c}{\textbf{one\_model}} \\" in both.to_latex()


def test_latex_escapes_all_but_ready_cells():
    lines = table().to_latex().splitlines()
    assert r"\caption{R\&D}" in lines and r"\begin{tabular}{lcl}" in lines
    assert r"a|b\_c & \textbf{1.5} & 50\% \\" in lines and r"[d] & 2 & \std{x} \\" in lines


def test_csv_is_read_back():
    rows = [("a|b_c", '1,"5"\n', 0.1), ("d", None, Cell("x", "bold"))]
    assert [*csv.reader(io.StringIO(csv_text(("What", "Value", "Why"), rows)))] == [
        ["What", "Value", "Why"], ["a|b_c", '1,"5"\n', "0.1"], ["d", "", "x"]
    ]  # fmt: skip


def test_the_console_shows_text_as_it_is(capsys):
    print_tables([table(sections={1: "[bold]"}, rows=[*table().rows, ("last",)])], ["[red]seen[/red]"], lines=True)
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("R&D", "│ [d]    │     2 │ x   │", "[bold]", "Plain.\n[red]seen[/red]\n"))


def test_tables_of_the_benchmarks_show_text_as_it_is(capsys):
    measure.print_table(
        "Of [red]rows[/red]", [{"name": "[x]", "n": 1234, "ok": False}], {"name": "[b]", "n": "n", "ok": "ok"}
    )
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("Of [red]rows[/red]", "[b]", "[x]", "1,234", "NO"))


def test_a_wide_table_is_cut_into_pieces_of_80_columns(capsys):
    """In four pieces. Texts are folded, numbers never."""
    header = ("A title that is long", *(f"number {i}" for i in range(9)), "Why")
    row = ("name " * 9, *(f"{i}2.5 ± 10.0" for i in range(9)), "text " * 40)
    print_tables([Table("Wide", header, [row, ("short", "1")], left=("Why",), sections={1: "later"})])
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) == 80 and printed.count("A title that is long") == 4
    assert all(text in printed for text in row[1:-1]) and printed.count("text") == 40
    assert printed.count("Wide") == 1 and printed.count("short") == 1
