"""The findings' files: strict JSON, a table, and pictures that show the analyses' numbers on light and dark."""

import csv
import re
from dataclasses import replace
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest
from cases import cases, table
from diagnosis_tables import SETTINGS, drawn_prefixes, drawn_rollouts, rollout
from strict_json import strict

from openrlhf_shear.diagnosis.findings import _beside, find
from openrlhf_shear.diagnosis.pictures import heatmap_picture
from openrlhf_shear.diagnosis.verdict import sign
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.findings import plain, print_findings, write_findings
from openrlhf_shear.rollouts.record import Heatmap

NAMES = ["trend", "trend_correct", "trend_incorrect", "changes", "lags", "accuracy", "auc", "densities", "positions",
         "groups", "first_error", "heatmap"]  # fmt: skip
NOT_ASKED = [
    "No controls and no noise: these distances were not measured (--controls).",
    "No text control: none was asked (--ngram 0).",
]
ENTRIES = table("diagnosis", "ENTRIES")  # of results.json, which readers of older ones know


@pytest.fixture(scope="module")
def tables():
    rng = np.random.default_rng(0)
    return drawn_prefixes(rng, problems=14, samples=4, positions=5, slope=-0.5), drawn_rollouts(rng, groups=14)


@pytest.fixture(scope="module")
def findings(tables):
    return find(*tables, SETTINGS, resamples=50)


@pytest.fixture
def analyses(findings):
    return findings.results["analyses"]


@pytest.fixture(scope="module")
def folder(findings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("found")
    write_findings(findings, folder)
    return folder


def test_results_are_strict_json_with_every_number(analyses, folder):
    written = strict((folder / "results.json").read_text())
    numbers = {what: estimate for made in analyses.values() if made for what, estimate in made.numbers.items()}
    assert written["numbers"] == [{"what": what, **plain(estimate)} for what, estimate in numbers.items()]
    papers = {row["paper"] for row in written["numbers"]} - {None}
    assert papers == {0.838, 0.18, -0.96, 0.67, 0.75, 0.08, 1.12, -0.42, 23704, 21352, 0.65, 0.97, 0.32, -0.055, -0.225}
    assert written["analyses"] == plain(analyses)
    assert list(written["analyses"]) == [*ENTRIES, "noise", "controls", "text"]
    missing = {name for name, analysis in written["analyses"].items() if analysis is None}
    assert missing == {"noise", "controls", "text"} and written["text_numbers"] == []
    for name, entries in ENTRIES.items():
        assert list(written["analyses"][name]) == entries.split(), name
    assert (written["settings"], written["resamples"], written["seed"]) == (SETTINGS, 50, 0)
    assert (written["problems"], written["prefixes"], written["left_out"], written["incomplete"]) == (14, 280, 0, 0)


def test_the_same_tables_give_the_same_bytes(tables, findings, folder, tmp_path):
    again = find(*tables, SETTINGS, resamples=50)
    write_findings(replace(again, pictures=again.pictures[:1]), tmp_path)
    for name in ("results.json", "results.md", "figures/trend.png", "figures/trend.svg", "figures/trend.csv"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name
    assert find(*tables, SETTINGS, resamples=50, seed=1).results["numbers"] != findings.results["numbers"]


def test_the_table_has_the_paper_beside_and_the_warnings(findings, folder):
    rows = {row[0]: row for row in findings.tables[0].rows}
    retained = next(row for what, row in rows.items() if what.startswith("Retained"))
    assert (retained[3], rows["Mean accuracy of groups"][3]) == ("0.838", "-")
    low, high = retained[2].split(" to ")
    assert float(low) <= float(retained[1]) <= float(high)
    table = [line for line in (folder / "results.md").read_text().splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(rows)
    assert {line.replace("\\|", "").count("|") for line in table} == {6}
    assert findings.notes[0].startswith("Prefixes: 280, of problems: 14.")


def test_a_small_sample_warns_of_every_interval(tables):
    prefixes, rollouts = tables
    few = prefixes[prefixes["problem"].isin(["p000", "p001", "p002"])]
    found = find(few, [kept for kept in rollouts if kept.group < "p003"], SETTINGS, resamples=30)
    warnings = [row["warning"] for row in found.results["numbers"] if row["low"] is not None]
    assert warnings and all("too few for an interval" in warning for warning in warnings)


def test_a_table_of_several_distances_marks_warnings_too():
    few, many = Estimate(0.1, 0.0, 0.2, 3, 9, None, "rests on 3 problems"), Estimate(0.2, 0.1, 0.3, 20, 99)
    table = _beside("title", ("first", "second"), {"rho": [few, many], "same": [many, many]}, slice(None), "note")
    assert table.rows == [("rho", "0.100 (0.000 to 0.200) [1]", "0.200 (0.100 to 0.300)")]
    assert table.notes == ["note", "[1] rests on 3 problems."]


def test_the_verdict_is_seven_lines_after_the_printed_tables(findings, folder, capsys):
    lines = findings.verdict
    assert findings.results["verdict"] == lines and len(lines) == 7 and max(map(len, lines)) <= 80
    within = findings.results["analyses"]["within"].rho_incorrect
    assert lines[0].startswith("Success falls with distance") and lines[0].endswith(within.text(".2f"))
    assert re.fullmatch(r"Verdict: .*, \d of 4 \(14 of 14 problems; 0% cut off late\)", lines[4])
    contrast = findings.results["analyses"]["contrast"]
    assert lines[5].split("(paper 1.12)")[1].strip() == contrast.last_first.text(".2f")
    assert lines[6].startswith("Omega, wrong over right") and lines[6].endswith(contrast.wrong_right.text(".2f"))
    print_findings(findings)
    printed = capsys.readouterr().out.splitlines()
    assert printed[-7:] == lines and max(map(len, printed)) <= 80
    markdown = (folder / "results.md").read_text()
    assert markdown.index(lines[-1]) < markdown.index("| What |")


@pytest.mark.parametrize(*cases("diagnosis", "test_a_sign_is_there_where_its_interval_is_and_no_warning"))
def test_a_sign_is_there_where_its_interval_is_and_no_warning(low, high, warning, side, word):
    assert sign(Estimate(-0.1, low, high, 12, 99, warning=warning), side) == word


@pytest.mark.parametrize("rows", [0, 1, "constant"])
def test_tables_that_say_nothing_give_reasons(rows, tables, tmp_path):
    prefixes = tables[0].iloc[: None if rows == "constant" else rows]
    if rows == "constant":
        prefixes = prefixes.assign(distance=0.5, successes=8, accuracy=0.5)
    rollouts = [rollout("a", 0, None), rollout("b", 0, True)] if rows else []
    found = find(prefixes, rollouts, SETTINGS, resamples=5)
    undefined = [row for row in found.results["numbers"] if row["value"] is None]
    assert len(undefined) >= 8 and all(row["warning"] for row in undefined)
    assert sorted(item.name for item in (*found.pictures, *found.omitted)) == sorted(NAMES)
    write_findings(found, tmp_path)
    strict((tmp_path / "results.json").read_text())
    markdown = (tmp_path / "results.md").read_text()
    assert "the task does not know where a rollout first goes wrong" in markdown
    assert "no correct and incorrect rollout of a group have a heatmap" in markdown


def test_prefixes_that_cannot_be_read_are_left_out_and_counted(tables):
    prefixes, rollouts = tables
    spoilt = prefixes.astype({"accuracy": float}).copy()
    spoilt.loc[0, "distance"] = np.inf
    spoilt.loc[7, ["completions", "successes", "accuracy"]] = 0, 0, np.nan
    found, without = (find(of, rollouts, SETTINGS, 5).results for of in (spoilt, prefixes.drop([0, 7])))
    assert (found["prefixes"], found["left_out"], found["incomplete"]) == (278, 2, 1)
    assert found["numbers"] == without["numbers"]


def test_what_is_missing_is_said(tables, findings):
    prefixes, rollouts = tables
    spoilt = prefixes.astype({"accuracy": float}).copy()
    spoilt.loc[0, ["completions", "successes", "accuracy"]] = 0, 0, np.nan
    spoilt.loc[[3, 4], ["completions", "successes", "accuracy"]] = 15, 6, 0.4
    fewer = find(spoilt, [*rollouts, rollout("z", 0, None)], SETTINGS | {"problems": 20}, resamples=5)
    assert fewer.notes[1:] == [
        "Prefixes left out, without a finite distance or without a verdict: 1.",
        "Prefixes with fewer verdicts than the 16 asked for: 3.",
        "Problems left out, without a sampled rollout: 5.",
        "Problems left out, without a graded rollout: 1.",
        *NOT_ASKED,
    ]
    assert findings.notes[1:] == NOT_ASKED and fewer.results["analyses"]["groups"].missing == 5


def test_every_kind_of_picture_is_there(findings, folder):
    assert [picture.name for picture in findings.pictures] == NAMES and findings.omitted == []
    files = {f"{name}.{kind}" for name in NAMES for kind in ("png", "svg", "csv")}
    assert {path.name for path in (folder / "figures").iterdir()} == files
    for name in NAMES:
        ElementTree.fromstring((folder / f"figures/{name}.svg").read_bytes())
        image = matplotlib.image.imread(folder / f"figures/{name}.png")[..., :3]
        assert (np.abs(image - image[2, 2]).max(axis=-1) > 0.2).mean() > 0.02, f"{name} is blank"


def test_a_csv_has_the_analysis_numbers(analyses, folder):
    bins, curve, profile = analyses["separation"].bins, analyses["trend"].every, analyses["first_errors"].profile
    columns = {
        ("trend", "accuracy"): curve.accuracy,
        ("trend", "distance"): curve.distance,
        ("changes", "change of distance"): [level.distance for level in analyses["changes"].levels],
        ("accuracy", "incorrect"): [bin_.accuracy_incorrect for bin_ in bins],
        ("auc", "AUC"): [bin_.auc for bin_ in bins],
        ("auc", "AUC at the same position"): [bin_.auc_position for bin_ in bins],
        ("auc", "AUC of the same problem and position"): [bin_.auc_problem for bin_ in bins],
        ("densities", "correct"): [share for bin_ in bins for share in bin_.density_correct],
        ("positions", "accuracy"): [mean for group in analyses["positions"].groups for mean in group.accuracy],
        ("groups", "share"): [level.share for level in analyses["groups"].levels],
        ("first_error", "omega"): [point.omega for point in profile],
        ("first_error", "correct rollouts"): [point.control for point in profile],
    }
    for (name, column), estimates in columns.items():
        with open(folder / f"figures/{name}.csv", newline="") as file:
            rows = [{title: float(value or "nan") for title, value in row.items()} for row in csv.DictReader(file)]
        for row, estimate in zip(rows, estimates, strict=True):
            numbers = tuple(row[key] for key in (column, f"{column}, low", f"{column}, high"))
            assert numbers == pytest.approx(estimate.shown, nan_ok=True), (name, column)
        assert name != "trend" or [row["position"] for row in rows] == curve.positions


def test_a_caption_has_the_numbers_of_its_picture(findings, analyses):
    captions = {picture.name: picture.caption for picture in findings.pictures}
    trend, changes = analyses["trend"].every.rho, analyses["changes"]
    assert f"rho {trend.value:.2f} ({trend.low:.2f} to {trend.high:.2f})" in captions["trend"]
    assert f"{trend.rows:,} prefixes of 14 problems" in captions["trend"]
    assert f"{changes.rho.rows} of {changes.strides} strides" in captions["changes"]
    assert "140 prefixes of originally correct rollouts, 140 of originally incorrect" in captions["auc"]


def test_the_heatmap_is_of_the_longest_mixed_pair_with_the_correct_one_s_spans_as_rows():
    spans = {"span_starts": [0, 5, 10], "heatmap_spans": [0, 2]}
    rollouts = [
        rollout("a", 0, True, heatmaps=[Heatmap(1, [9.0])], heatmap_spans=[0], span_starts=[0]),
        rollout("a", 1, True, heatmaps=[], heatmap_spans=[0], span_starts=[0]),
        rollout("b", 0, False, [1] * 15, heatmaps=[Heatmap(1, [1, 2, 3, 4]), Heatmap(2, [5, 6, 7, 8])], **spans),
        rollout("b", 1, True, [1] * 12, heatmaps=[Heatmap(2, [0] * 4)], **spans),
        rollout("b", 2, True, [1] * 13, heatmaps=[], **spans),
        rollout("c", 0, False, [1] * 99, heatmaps=[Heatmap(1, [5])], heatmap_spans=[0], span_starts=[0]),
        rollout("c", 1, True, [1] * 99, heatmaps=[], heatmap_spans=[0], span_starts=[0]),
    ]
    picture = heatmap_picture(rollouts, "")
    assert {(a, b): value for a, b, value in picture.rows} == {(0, 0): 5, (0, 10): 7, (10, 0): 6, (10, 10): 8}
    assert "rollout 2 (correct, 13 tokens) and 0 (incorrect, 15 tokens) of problem b" in picture.caption
