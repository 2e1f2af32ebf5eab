"""The lab's files: strict JSON, tables with the right numbers, and pictures that show them."""

import csv
import io
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest
from lab_cases import MADE
from strict_json import strict

from openrlhf_shear.lab.findings import find
from openrlhf_shear.lab.placement import RADIUS, placement
from openrlhf_shear.lab.worth import LabRun
from openrlhf_shear.report.bootstrap import Bootstrap
from openrlhf_shear.report.figures import render
from openrlhf_shear.report.findings import write_findings
from openrlhf_shear.rollouts.localisation import Trace, tokens_auc

NAMES = ("placement", "profile", "worth", "curves")
STEPS = 7
GAINS = {"uniform": 0.0, "shear": 0.03, "shear/matched": 0.01, "mine|odd": -0.05}


def planted_runs(gains=GAINS, seeds=6):
    """Accuracy 0.4 plus the rule's gain, plus or minus 0.01 by seed and rule; final is 0.2 more."""
    runs = []
    for i, (rule, gain) in enumerate(gains.items()):
        for seed in range(seeds):
            noise = 0.0 if rule == "uniform" else 0.01 * (-1) ** (seed + i)
            metrics = {"negative_credit": (float("nan"),) * STEPS, "loss": (float(i),) * STEPS}
            made = MADE if seed else None
            runs.append(LabRun(rule, seed, (0.4 + gain + noise,) * STEPS, 0.6 + gain + noise, metrics, 1.0, made))
    return runs


def planted_traces(jump, problems=12, right=0.4):
    """Two rollouts of weights 0.4, more by `jump` from their first errors (4 to 8, and 2 later) on, beside a correct
    one that stays at `right`."""
    traces = []
    for problem in range(problems):
        for error in (4 + problem % 5, 6 + problem % 5):
            traces.append(Trace(f"p{problem}", False, [0.4] * error + [0.4 + jump] * (12 - error), error))
        traces.append(Trace(f"p{problem}", True, [right] * 12, None))
    return traces


def planted(jump, **changes):
    return placement(planted_traces(jump, **changes), Bootstrap(20))


@pytest.fixture(scope="module")
def findings():
    placements = {"uniform": planted(0.0), "shear": planted(0.5)}
    return find(planted_runs(), placements, {"steps": STEPS, "start": "shipped"})


@pytest.fixture(scope="module")
def folder(findings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    write_findings(findings, folder)
    return folder


def test_results_are_strict_json_with_every_number(findings, folder):
    written = strict((folder / "results.json").read_text())
    assert (written["settings"], written["baseline"], written["block"]) == (
        {"steps": 7, "start": "shipped"},
        "uniform",
        5,
    )
    assert [row["rule"] for row in written["rules"]] == list(GAINS) and written["made"] == [MADE]
    shear, computed = written["rules"][1], findings.results["placements"]["shear"]
    assert shear["seeds"] == [0, 1, 2, 3, 4, 5]
    assert [row["final"] for row in shear["runs"]] == pytest.approx([0.62, 0.64] * 3)
    assert [row["mean"] for row in shear["runs"]] == pytest.approx([0.42, 0.44] * 3)
    assert shear["against"]["matched"]["mean"]["mean"] == pytest.approx(0.02)
    assert shear["metrics"] == {"loss": {"mean": 1.0, "std": 0.0, "n": 6}}
    assert [(row["first"], row["last"]) for row in shear["curve"]] == [(1, 5), (6, 7)]
    assert written["rules"][0]["curve"] == []
    placed = written["placements"]["shear"]
    assert placed["errors"]["auc"]["value"] == placed["auc_incorrect"]["value"] == 1.0
    kept = {name: value for name, value in vars(computed.share).items() if name != "draws"}
    assert placed["share"] == kept and list(placed) == ["errors", "auc_incorrect", "share", "contrast"]
    assert [row["offset"] for row in placed["errors"]["profile"]] == list(range(-RADIUS, RADIUS + 1))


def test_the_same_runs_give_the_same_bytes(findings, folder, tmp_path):
    again = find(planted_runs(), findings.results["placements"], findings.results["settings"])
    names = [path.relative_to(tmp_path) for path in write_findings(again, tmp_path)]
    pictures = {f"figures/{name}.{kind}" for name in NAMES for kind in ("png", "svg", "csv")}
    assert {str(name) for name in names} == {"results.json", "results.md"} | pictures
    for name in names:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


def test_another_scale_on_incorrect_rollouts_moves_no_auc_within_them():
    found = planted(0.0, right=1.0)
    assert found.errors.auc_matched.value < 0.3 and found.auc_incorrect.value == found.errors.auc.value == 0.5
    found = planted(-0.2)
    assert found.errors.auc.value == found.auc_incorrect.value == 0.0


def test_larger_weights_in_groups_that_err_early_are_no_placement():
    traces = [
        Trace(f"p{problem}", correct, [1.0 - 0.05 * problem] * 20, None if correct else 3 + problem + more)
        for problem in range(12)
        for correct, more in ((True, 0), (False, 0), (False, 2))
    ]
    wrong = [trace for trace in traces if not trace.correct]
    assert tokens_auc(wrong, True, Bootstrap(20)).value > 0.9
    assert placement(traces, Bootstrap(20)).auc_incorrect.value == 0.5


def test_the_share_is_of_the_credit_s_size_within_a_token_of_the_error():
    def share(*weights):
        """Of an error at token 3."""
        traces = [Trace("p", False, weights, 3), Trace("p", True, [1.0] * 6, None)]
        return placement(traces, Bootstrap(20)).share.value

    assert share(0, 0, 0, 1, 0, 0) == share(0, 0, 5, 0, 0, 0) == share(0, 0, 0, 0, 2, 0) == 1.0
    assert share(0, 1, 0, 0, 0, 0) == share(0, 0, 0, 0, 0, 1) == 0.0
    assert share(0, 1, 0, -3, 0, 0) == 0.75
    assert share(0, 0, 0, 0, 0, 0) == 0.0


def rows_of(table):
    return {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}


def test_the_tables_have_the_planted_numbers(findings):
    where, worth = map(rows_of, findings.tables)
    uniform, shear = where["uniform"], where["shear"]
    assert shear["AUC after/before"] == "1.000 (1.000 to 1.000)"
    assert shear["Same split of correct rollouts"] == "0.500 (0.500 to 0.500)"
    for title in ("Same index, all rollouts", "Same index, incorrect of a group"):
        assert (shear[title], uniform[title]) == ("1.000 (1.000 to 1.000)", "0.500 (0.500 to 0.500)")
    for title in ("Largest within 1 token", "A random token", "Share within 1 token"):
        assert uniform[title] == "25.0% (25.0% to 25.0%)"
    errors = [more + problem % 5 for problem in range(12) for more in (4, 6)]
    share = np.mean([2.2 / (0.4 * error + 0.9 * (12 - error)) for error in errors])
    assert shear["Share within 1 token"].startswith(f"{share:.1%} (") and shear["Rollouts"] == "24"
    # Six differences of 3 +- 1 points: half an interval is 2.5706 * sqrt(6 / 5) / sqrt(6) = 1.15. Both rules of the
    # last difference move with equal signs, so no noise is left.
    shear, odd, uniform = worth["shear"], worth["mine|odd"], worth["uniform"]
    assert shear["Mean over uniform"] == shear["Final over uniform"] == "+3.0 (+1.9 to +4.1)"
    assert (shear["Mean accuracy"], shear["Final accuracy"]) == ("43.0% ± 1.1", "63.0% ± 1.1")
    assert shear["Mean over matched"] == "+2.0 (-0.3 to +4.3)"
    assert (odd["Mean over uniform"], odd["Mean over shear"]) == ("-5.0 (-6.1 to -3.9)", "-8.0 (-8.0 to -8.0)")
    assert (uniform["Mean over uniform"], uniform["Seeds"]) == ("", "6")
    detectable = findings.results["rules"][1]["against"]["baseline"]["mean"]["detectable"]
    assert shear["Smallest effect"] == f"{100 * detectable:.1f}"


def test_a_user_s_rule_is_called_by_its_class():
    made = find(
        planted_runs({"uniform": 0.0, "my_rules:Mine/power=2": 0.1}), {"my_rules:Mine/power=2": planted(0.5)}, {}
    )
    assert [set(rows_of(table)) for table in made.tables] == [{"Mine, power 2"}, {"uniform", "Mine, power 2"}]
    assert [row[0] for row in made.pictures[0].rows] == ["Mine, power 2"]
    assert "my_rules:Mine/power=2" in made.results["placements"]


def test_columns_that_no_rule_has_are_left_out(findings):
    assert "Mean over shuffled" not in findings.tables[1].header
    (table,) = find(planted_runs({"uniform": 0.0, "a": 0.1}), {}, {}).tables
    assert table.header == ("Rule", "Seeds", "Final accuracy", "Final over uniform", "Mean accuracy",
                            "Mean over uniform", "Smallest effect")  # fmt: skip
    (table,) = find(planted_runs({"a": 0.1}), {}, {}).tables
    assert table.header == ("Rule", "Seeds", "Final accuracy", "Mean accuracy")
    assert table.notes == ["No rule shares seeds with uniform or with its control, so nothing is compared."]


def test_the_notes_count_the_intervals(findings):
    notes = " ".join(findings.tables[1].notes)
    # final and mean over uniform of three rules, one over matched, one over shear
    assert "The table has 8 such intervals." in notes and "here about 0.4" in notes
    assert "each scaled by one constant a step so that the total negative and positive credit equal the rule's" in notes
    assert "fewer than 5 pairs" not in notes
    assert "all pairs differ alike, so an interval says nothing: mine|odd." in notes


def test_few_and_missing_seeds_are_said():
    runs = planted_runs({"uniform": 0.0, "a": 0.1, "b": 0.1})
    runs = [run for run in runs if run.rule != "b" or run.seed == 2]
    runs = [run for run in runs if run.rule != "uniform" or run.seed < 4]
    (table,) = find(runs, {}, {}).tables
    rows = rows_of(table)
    assert rows["a"]["Mean over uniform"].endswith(", n = 4)") and rows["a"]["Seeds"] == "6"
    assert rows["b"]["Mean over uniform"] == "+11.0 (no interval)" and rows["b"]["Smallest effect"] == ""
    assert "fewer than 5 pairs of seeds, so intervals mean little, if any: a, b." in " ".join(table.notes)


def test_findings_of_nothing_say_why():
    nothing = find([], {}, {})
    assert nothing.pictures == [] and nothing.tables == []
    nowhere = find(planted_runs({"shear": 0.1}), {"shear": planted(0.5, problems=0)}, {})
    reasons = {omitted.name: omitted.reason for omitted in (*nothing.omitted[:1], *nowhere.omitted)}
    assert reasons == {
        "placement": "no placement was measured",
        "profile": "no rule has an incorrect rollout whose first error lies inside it",
        "worth": "no rule shares a seed with uniform",
        "curves": "no rule shares a seed with uniform",
    }


def test_a_picture_s_rows_hold_the_planted_numbers(findings, folder):
    assert [picture.name for picture in findings.pictures] == list(NAMES)

    def rows(name):
        with open(folder / f"figures/{name}.csv", newline="") as file:
            return list(csv.DictReader(file))

    worth = {row["rule"]: row for row in rows("worth")}
    assert list(worth) == ["shear", "shear/matched", "mine|odd"]
    assert float(worth["shear"]["over uniform"]) == pytest.approx(0.03)
    assert float(worth["shear"]["over matched"]) == pytest.approx(0.02) and worth["shear"]["over matched, seeds"] == "6"
    assert worth["mine|odd"]["over matched"] == ""
    assert (
        float(worth["shear"]["over uniform, high"])
        == findings.results["rules"][1]["against"]["baseline"]["mean"]["high"]
    )
    curves = [row for row in rows("curves") if row["rule"] == "shear"]
    assert [(row["first step"], row["last step"]) for row in curves] == [("1", "5"), ("6", "7")]
    assert [float(row["accuracy"]) - float(row["uniform"]) for row in curves] == pytest.approx([0.03] * 2)
    uniform, shear = rows("placement")
    titles = "After against before the first error", "Same index, incorrect rollouts of a group"
    assert [float(shear[title]) for title in titles] == [1, 1]
    assert float(shear["The same split of correct rollouts"]) == float(uniform["A random split"]) == 0.5
    assert float(shear["A random split"]) == findings.results["placements"]["shear"].errors.auc_random.value > 0.5
    profile = {int(row["offset"]): row for row in rows("profile") if row["rule"] == "shear"}
    assert [float(profile[i]["incorrect"]) for i in (-1, 0, 3)] == pytest.approx([0.4, 0.9, 0.9])
    assert float(profile[3]["correct"]) == pytest.approx(0.4)


def test_25_rules_with_long_names_are_drawn():
    rules = ["uniform", *(f"some_package.rules:MyLongRule/window={i}/stride=1/matched" for i in range(24))]
    placements = dict.fromkeys(rules, planted(0.5)) | {"never": planted(0.5, problems=0)}
    found = find(planted_runs({rule: 0.001 * i for i, rule in enumerate(rules)}, seeds=2), placements, {})
    assert [picture.name for picture in found.pictures] == list(NAMES)
    for picture in found.pictures:
        assert picture.height > 8
        light = matplotlib.image.imread(io.BytesIO(render(picture, "png")))[..., :3]
        assert light[2, 2].min() > 0.99 and (np.abs(light - light[2, 2]).max(axis=-1) > 0.2).mean() > 0.02
        ElementTree.fromstring(render(picture, "svg", dark=True))
