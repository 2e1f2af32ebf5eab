"""The ledger's comparison: which runs are paired, and its corrected p values against their definition."""

import json
from dataclasses import replace
from pathlib import Path

import ledger_comparison
import numpy as np
import pytest
from lab_cases import write_run
from ledger_comparison import SETTINGS, Asked, Kept, compared, differences

from openrlhf_shear.lab.policy import fingerprint, start_policy
from openrlhf_shear.lab.runs import jobs
from openrlhf_shear.lab.variants import parse_rules
from openrlhf_shear.report.provenance import distinct

RESULTS = Path(__file__).parents[3] / "benchmarks/results"


def write(folder, rule, accuracy, large=None, **changes):
    """Runs of both measures, by seed; final is half of the mean."""
    settings = replace(SETTINGS, **changes)
    start = start_policy(SETTINGS, folder, print)
    for job in jobs(settings, parse_rules(rule), accuracy, start, large or fingerprint(start), folder):
        write_run(job, accuracy[job.seed])
        kept = json.loads(job.path.read_text()) | {"final": accuracy[job.seed] / 2}
        made = {"commit": "c0ffee", "machine": "a CPU", "versions": {"torch": "2"}}
        job.path.write_text(json.dumps(kept | {"of": {"made": made}}))


def test_differences_are_of_the_seeds_that_both_have_and_were_planned(tmp_path):
    write(tmp_path, "uniform", {0: 0.5, 1: 0.6, 3: 0.5, 99: 0.1})
    write(tmp_path, "shear", {0: 0.6, 1: 0.5, 2: 0.9, 99: 0.9})
    kept = Kept(tmp_path, None)
    found = differences(kept, Asked("primary", "shear", "uniform"))
    assert found["mean"] == pytest.approx([0.1, -0.1]) and found["final"] == pytest.approx([0.05, -0.05])
    assert [made["commit"] for made in distinct(kept.made)] == ["c0ffee"]


def test_runs_of_the_larger_policy_are_recognised_by_its_weights(tmp_path):
    asked = Asked("5.1M", "shear", "uniform", large=True)
    for rule, accuracy in {"uniform": 0.4, "shear": 0.6}.items():
        write(tmp_path, rule, {0: 0.5})
        write(tmp_path, rule, {0: accuracy}, large="a digest", start="runs/ledger/large")
    assert differences(Kept(tmp_path, "a digest"), asked)["mean"] == pytest.approx([0.2])
    for large in (None, "", "another one"):
        assert differences(Kept(tmp_path, large), asked) == {"mean": [], "final": []}


def test_the_published_differences_are_those_of_the_runs_beside_them():
    """Every run is found, also of rules whose files were edited since."""
    large = (RESULTS / "ledger/lab/large.sha256").read_text().strip()
    published = json.loads((RESULTS / "ledger_comparison.json").read_text())["differences"]
    found = compared(Kept(RESULTS / "ledger/lab", large))
    assert [(row["rule"], row["over"], row["seeds"]) for row in found] == [
        (row["rule"], row["over"], row["seeds"]) for row in published
    ]
    for row, of in zip(found, published, strict=True):
        assert row["mean"] == pytest.approx(of["mean"]) and row["final"] == pytest.approx(of["final"])


def test_rules_are_compared_with_their_runs_by_earlier_code(tmp_path):
    now, then = tmp_path / "now", tmp_path / "then"
    for folder, shear in ((now, 0.9), (then, 0.6)):
        write(folder, "uniform", {0: 0.5, 1: 0.5})
        write(folder, "shear", {0: shear, 1: shear**2})
    rows = compared(Kept(now, None), Kept(then, None))
    found = {(row["part"], row["rule"], row["over"]): row["mean"]["mean"] for row in rows}
    assert found[("primary", "shear", "uniform")] == pytest.approx((0.9 + 0.81) / 2 - 0.5)
    assert found[("again", "shear", "shear")] == pytest.approx((0.9 + 0.81 - 0.6 - 0.36) / 2)
    assert found[("again", "uniform", "uniform")] == 0


def test_a_learning_rate_is_compared_with_the_usual_one(tmp_path):
    write(tmp_path, "uniform", {0: 0.5})
    write(tmp_path, "uniform", {0: 0.8}, learning_rate=2e-4)
    found = differences(Kept(tmp_path, None), Asked("learning rate", "uniform", "uniform", learning_rate=2e-4))
    assert found["mean"] == pytest.approx([0.3])


def test_two_rules_are_compared_at_another_rate(tmp_path):
    for rate, shear in {1e-4: 0.6, 2e-4: 0.9}.items():
        write(tmp_path, "uniform", {0: 0.5}, learning_rate=rate)
        write(tmp_path, "shear", {0: shear}, learning_rate=rate)
    asked = Asked("primary at 2e-4", "shear", "uniform", learning_rate=2e-4, its_rate=2e-4)
    assert differences(Kept(tmp_path, None), asked)["mean"] == pytest.approx([0.4])


def test_rows_have_intervals_and_mark_interim_results(tmp_path, monkeypatch):
    asked = Asked("primary", "shear", "uniform", range(3)), Asked("secondary", "shear", "shear/permuted", range(4))
    monkeypatch.setattr(ledger_comparison, "ASKED", (*asked, replace(asked[1], over="shear/matched")))
    write(tmp_path, "uniform", {0: 0.5, 1: 0.5, 2: 0.5})
    write(tmp_path, "shear", {0: 0.51, 1: 0.52, 2: 0.53})
    write(tmp_path, "shear/permuted", {0: 0.5, 1: 0.5, 2: 0.5})
    primary, secondary = compared(Kept(tmp_path, None))
    # t = 0.02 / (0.01 / sqrt(3)) with 2 degrees of freedom: P(|T| > t) = 1 - t / sqrt(2 + t^2)
    t = 2 * np.sqrt(3)
    p = 1 - t / np.sqrt(2 + t * t)
    assert primary["p"] == pytest.approx(p) and "holm" not in primary
    assert secondary["p"] == pytest.approx(p) and secondary["holm"] == pytest.approx(2 * p), "two were planned"
    assert (primary["interim"], secondary["interim"]) == (False, True)
    assert ledger_comparison.points(primary["mean"]) == "+2.0 (-0.5 to +4.5)"


def test_every_planned_rule_is_one_and_no_difference_is_of_a_rule_with_itself():
    for asked in ledger_comparison.ASKED:
        names = {asked.rule, asked.over}
        made = [variant.rule(SETTINGS) for variant in parse_rules(",".join(names))]
        assert len(made) == len(names) == 2 or asked.learning_rate != asked.its_rate, asked
