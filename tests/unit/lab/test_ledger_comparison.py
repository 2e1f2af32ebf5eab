"""The ledger's comparison: which runs are paired, and its corrected p values against their definition."""

import json
from dataclasses import replace

import ledger_comparison
import numpy as np
import pytest
import run_tables
from cases import cases
from lab_cases import MADE, write_run
from ledger_comparison import SETTINGS, Comparison, Runs, compared

from openrlhf_shear.lab.policy import fingerprint, start_policy
from openrlhf_shear.lab.runs import jobs
from openrlhf_shear.lab.variants import parse_rules


def write(folder, rule, accuracy):
    """Runs of both measures, by seed; final is half of the mean."""
    start = start_policy(SETTINGS)
    for job in jobs(SETTINGS, parse_rules(rule), accuracy, start, fingerprint(start), folder):
        write_run(job, accuracy[job.seed], final=accuracy[job.seed] / 2, made=MADE)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The folders of the studies' runs, unpacked, by study."""
    folders = {study: tmp_path_factory.mktemp(study) for study in run_tables.STUDIES}
    for study, folder in folders.items():
        run_tables.unpack(run_tables.table_of(study), folder)
    return folders


def published(name):
    return json.loads((run_tables.RESULTS / f"{name}.json").read_text())


@pytest.mark.parametrize(*cases("lab", "test_the_published_differences_are_those_of_the_table"))
def test_the_published_differences_are_those_of_the_table(tables, name, study, earlier):
    """Every run is found, also of rules whose files were edited since."""
    found = compared(Runs(tables[study]), Runs(tables[earlier]) if earlier else None)
    rows = published(name)["differences"]
    assert [(row["rule"], row["over"], row["seeds"]) for row in found] == [
        (row["rule"], row["over"], row["seeds"]) for row in rows
    ]
    for row, of in zip(found, rows, strict=True):
        assert row["mean"] == pytest.approx(of["mean"]) and row["final"] == pytest.approx(of["final"])


def test_a_folder_of_runs_and_its_table_hold_the_same(tables, tmp_path):
    study = "bookkeeping_gates_runs"
    table, folder = tmp_path / "t.jsonl.xz", tmp_path / "lab"
    rows = run_tables.read(run_tables.table_of(study))
    run_tables.write(table, rows[:7])
    assert run_tables.unpack(table, folder) == 7 and run_tables.unpack(table, folder) == 0, "none is written over"
    assert run_tables.pack(table, tables[study]) == len(rows) == 30
    assert run_tables.read(table) == rows and table.read_bytes() == run_tables.table_of(study).read_bytes()
    made = {name for row in rows for name in row["made"]}
    assert {"commit", "command", "machine"} <= made


def test_rows_have_intervals_and_mark_interim_results(tmp_path, monkeypatch):
    planned = (
        Comparison("primary", "shear", "uniform", range(3)),
        Comparison("secondary", "shear", "shear/permuted", range(4)),
    )
    monkeypatch.setattr(ledger_comparison, "COMPARISONS", (*planned, replace(planned[1], over="shear/matched")))
    write(tmp_path, "uniform", {0: 0.5, 1: 0.5, 2: 0.5})
    write(tmp_path, "shear", {0: 0.51, 1: 0.52, 2: 0.53})
    write(tmp_path, "shear/permuted", {0: 0.5, 1: 0.5, 2: 0.5})
    primary, secondary = compared(Runs(tmp_path))
    # t = 0.02 / (0.01 / sqrt(3)) with 2 degrees of freedom: P(|T| > t) = 1 - t / sqrt(2 + t^2)
    t = 2 * np.sqrt(3)
    p = 1 - t / np.sqrt(2 + t * t)
    assert primary["p"] == pytest.approx(p) and "holm" not in primary
    assert secondary["p"] == pytest.approx(p) and secondary["holm"] == pytest.approx(2 * p), "two were planned"
    assert (primary["interim"], secondary["interim"]) == (False, True)
    assert ledger_comparison.points(primary["mean"]) == "+2.0 (-0.5 to +4.5)"


def test_every_planned_rule_is_one_and_no_difference_is_of_a_rule_with_itself():
    for comparison in ledger_comparison.COMPARISONS:
        names = {comparison.rule, comparison.over}
        made = [variant.rule(SETTINGS) for variant in parse_rules(",".join(names))]
        assert len(made) == len(names) == 2 or comparison.learning_rate != comparison.its_rate, comparison
