"""The frame of every tool's findings: strict JSON, Markdown, the console, and pictures that come and go with them."""

import io
import json
from functools import partial

import matplotlib.image
import numpy as np
import pytest
from strict_json import strict

from openrlhf_shear.report.bootstrap import Analysis
from openrlhf_shear.report.estimates import Estimate, paired
from openrlhf_shear.report.figures import DARK, LIGHT, Picture, Series, columns, plot_rows, render, spread
from openrlhf_shear.report.findings import Omission, Results, apart, plain, print_findings, write_findings
from openrlhf_shear.report.tables import Table

NUMBERS = [Estimate(0.5, 0.25, 0.75, 9, 9, draws=np.ones(3)), None, Estimate(None, None, None, 0, 0, None, "nothing")]


def fields_of(estimate) -> dict:
    """What JSON has of an estimate: not its draws."""
    return {name: value for name, value in vars(estimate).items() if name != "draws"}


def rows_picture(name="rows"):
    names = ["a $x$", "b", "c"]
    series = [Series("one", "One", "blue", NUMBERS), Series("two", "Two", "gray", NUMBERS[::-1], hollow=True)]
    plot = partial(plot_rows, names=names, series=series, xlabel="Value", line=0)
    return Picture(name, "Rows", "here", "", *columns({"rule": names, **series[0].columns}), plot)


def small(*drawn):
    """The findings of a tool with these pictures and omissions."""
    results = {"settings": {"steps": 2, "x": float("inf")}, "numbers": NUMBERS}
    tables = [Table("First", ("A", "B"), [("a|b", "1")], notes=["Of the first."]), Table("", ("C",), [("c",)])]
    return Results("Small", results, tables, ["One note.", "Another."], *apart(drawn or [rows_picture()]))


def test_files_are_json_markdown_and_pictures(tmp_path):
    written = write_findings(small(rows_picture(), Omission("Lines", "there are none")), tmp_path)
    names = ["results.json", "results.md", *(f"figures/rows.{kind}" for kind in ("png", "svg", "csv"))]
    assert [str(path.relative_to(tmp_path)) for path in written] == names
    results = strict((tmp_path / "results.json").read_text())
    assert results["settings"] == {"steps": 2, "x": None} and results["numbers"][:2] == [fields_of(NUMBERS[0]), None]
    assert (tmp_path / "results.md").read_text() == (
        "# Small\n\nsteps 2, x inf\n\n## First\n\n| A | B |\n| --- | ---: |\n| a\\|b | 1 |\n\nOf the first.\n\n"
        "| C |\n| --- |\n| c |\n\n\nOne note.\n\nAnother.\n\nNo picture 'Lines': there are none.\n"
    )
    assert (
        tmp_path / "figures/rows.csv"
    ).read_text() == 'rule,one,"one, low","one, high"\na $x$,0.5,0.25,0.75\nb,,,\nc,,,\n'


def test_the_console_has_the_tables_and_every_note(capsys):
    print_findings(small(Omission("Lines", "there are none")))
    printed = capsys.readouterr().out
    for text in ("First", "a|b", "Of the first.", "One note.", "Another.", "No picture 'Lines': there are none."):
        assert text in printed


def test_pictures_of_earlier_findings_are_removed_and_nothing_else(tmp_path):
    write_findings(small(rows_picture(), rows_picture("gone")), tmp_path)
    kept = ["figures/mine.png", "figures/gone.pdf", "figures/rows/gone.png", "gone.png", "rollouts.parquet"]
    for name in kept:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    write_findings(small(rows_picture(), Omission("Gone", "of nothing", "gone")), tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"results.json", "results.md", *kept, *(f"figures/rows.{kind}" for kind in ("png", "svg", "csv"))}


def test_numbers_become_plain_without_the_data_of_pictures():
    analysis = Analysis({1: NUMBERS[2], "names": ("a", float("nan"))}, table=object())
    value = plain({"made": analysis})["made"]
    assert value == {"1": fields_of(NUMBERS[2]), "names": ["a", None]} and json.dumps(value)


@pytest.mark.parametrize("dark", [False, True])
def test_rows_are_drawn_where_they_are_and_names_as_they_are(dark):
    picture = rows_picture()
    image = matplotlib.image.imread(io.BytesIO(render(picture, "png", dark)))[..., :3]
    paper = tuple(int((DARK if dark else LIGHT).paper[i : i + 2], 16) / 255 for i in (1, 3, 5))
    assert image[2, 2] == pytest.approx(paper, abs=0.01)
    assert (np.abs(image - image[2, 2]).max(axis=-1) > 0.2).mean() > 0.01
    assert "a $x$" in render(picture, "svg", dark).decode()  # in a comment beside its glyphs
    assert render(picture, "svg", dark) == render(picture, "svg", dark)


def test_columns_hold_a_number_and_its_interval():
    assert spread("x", NUMBERS) == {"x": [0.5, "", ""], "x, low": [0.25, "", ""], "x, high": [0.75, "", ""]}
    assert spread("d", [paired([0.5])]) == {"d": [0.5], "d, low": [""], "d, high": [""]}
    with pytest.raises(ValueError, match="zip"):
        columns({"a": [1, 2], "b": [1]})
