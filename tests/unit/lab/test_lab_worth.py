"""The worth of a credit rule: paired intervals, detectable differences, controls and learning curves."""

import numpy as np
import pytest

from openrlhf_shear.lab import worth
from openrlhf_shear.lab.worth import LabRun, curve, worths
from openrlhf_shear.report.estimates import Stat, paired


def run(rule, seed, accuracy=(0.5,), final=0.5, **metrics):
    return LabRun(rule, seed, tuple(accuracy), final, metrics, 1.0)


def test_the_interval_is_the_one_worked_out_by_hand():
    found = paired([0.02, -0.01, 0.03, 0.00, 0.01])
    # deviations from 0.01 are 1, -2, 2, -1, 0 hundredths: s = sqrt(10 / 4) hundredths; t_{0.975, 4} = 2.776445
    half = 2.776445 * np.sqrt(2.5e-4 / 5)
    assert (found.mean, found.low, found.high) == pytest.approx((0.01, 0.01 - half, 0.01 + half), abs=1e-7)
    assert (found.seeds, found.warning, found.half_width) == (5, None, pytest.approx(half, abs=1e-7))


def test_too_few_pairs_warn_or_have_no_interval():
    assert paired([]) is None
    single = paired([0.03])
    assert (single.mean, single.low, single.high, single.seeds) == (0.03, None, None, 1)
    assert (single.detectable, single.half_width) == (None, 0)
    assert "one pair" in single.warning
    assert "4 pairs" in paired([0.01, 0.02, 0.03, 0.05]).warning
    assert paired([0.01, 0.02, 0.03, 0.05, 0.01]).warning is None


@pytest.mark.filterwarnings("error")
def test_pairs_that_differ_alike_have_an_interval_of_a_point_and_a_warning():
    same = paired([0.3 - 0.2, 0.7 - 0.6, 0.1, 0.5 - 0.4, 0.1, 0.1])  # equal but for rounding
    assert same.low == same.high == same.mean == pytest.approx(0.1)
    assert same.detectable == 0
    assert "differ alike" in same.warning


def test_a_rule_is_compared_over_the_seeds_that_both_have():
    runs = [run("a", 0, final=0.9), run("a", 1, (0.2, 0.4, 0.9), final=0.6), run("a", 2, (0, 0, 0), final=0.7)]
    runs += [run("b", 2, (0, 0, 0), final=0.6), run("b", 1, (0.1, 0.1, 0.4), final=0.2), run("b", 3, final=0.0)]
    versus = worths(runs, "b")[0].against["baseline"]
    assert (versus.final.mean, versus.final.seeds) == (pytest.approx((0.4 + 0.1) / 2), 2)
    assert versus.mean.mean == pytest.approx(0.3 / 2)
    assert worths(runs, "c")[0].against == worths([*runs, run("c", 9)], "c")[0].against == {}


def test_runs_that_make_no_pair_are_refused():
    with pytest.raises(ValueError, match="a has seed 3 twice"):
        worths([run("a", 3), run("a", 3), run("b", 3)], "b")
    with pytest.raises(ValueError, match=r"as many steps: got \[1, 2\]"):
        worths([run("a", 0, (0.1, 0.2)), run("b", 0)], "b")
    with pytest.raises(ValueError, match="a, seed 4: a run must have at least one step"):
        run("a", 4, ())
    with pytest.raises(ValueError, match="accuracies must be finite"):
        run("a", 4, (0.5, float("nan")))


def test_a_rule_is_compared_with_the_baseline_its_own_controls_and_shear():
    rules = ["onset", "uniform", "shear", "shear/matched", "onset/matched", "onset/shuffled"]
    runs = [run(rule, seed, (0.1 * i,), 0.05 * i) for seed in (0, 1) for i, rule in enumerate(rules)]
    found = {worth.rule: worth for worth in worths(runs)}
    assert list(found) == rules
    against = {rule: {role: versus.against for role, versus in worth.against.items()} for rule, worth in found.items()}
    assert against["onset"] == {
        "baseline": "uniform", "matched": "onset/matched", "shuffled": "onset/shuffled", "shear": "shear",
    }  # fmt: skip
    assert against["uniform"] == {}
    assert against["shear"] == {"baseline": "uniform", "matched": "shear/matched"}
    assert against["shear/matched"] == {"baseline": "uniform"}  # shear's row says its difference to shear
    assert against["onset/matched"] == {"baseline": "uniform", "shear": "shear"}
    assert found["onset"].against["matched"].mean.mean == pytest.approx(0.0 - 0.4)
    assert found["onset"].against["matched"].final.mean == pytest.approx(0.0 - 0.2)


def test_means_and_stds_are_over_seeds():
    nan = float("nan")
    runs = [
        run("a", 1, (0.2, 0.4), 0.7, cut=(1.0, nan)),
        run("a", 0, (0.4, 0.6), 0.9, cut=(2.0, 4.0), empty=(nan, nan)),
    ]
    (found,) = worths(runs)
    assert found.seeds == (0, 1)
    root = np.sqrt(2) / 10  # of two values 0.2 apart
    assert vars(found.final) == pytest.approx({"mean": 0.8, "std": root, "n": 2})
    assert vars(found.mean) == pytest.approx({"mean": 0.4, "std": root, "n": 2})
    assert found.metrics == {"cut": Stat(2.0, pytest.approx(np.sqrt(2)), 2)}
    assert found.against == {}


def test_another_baseline_may_be_shear_itself():
    runs = [run(rule, 0) for rule in ("uniform", "shear")]
    found = {worth.rule: worth for worth in worths(runs, baseline="shear")}
    assert list(found["uniform"].against) == ["baseline"] and found["shear"].against == {}


def test_a_curve_has_the_means_of_blocks_over_the_shared_seeds(monkeypatch):
    monkeypatch.setattr(worth, "BLOCK", 2)
    runs = [run("a", 0, (0.1, 0.3, 0.5, 0.7, 0.9)), run("a", 1, (0.3, 0.5, 0.5, 0.7, 0.7)), run("a", 2, (1,) * 5)]
    runs += [run("uniform", 0, (0.1,) * 5), run("uniform", 1, (0.2,) * 5), run("uniform", 3, (1,) * 5)]
    blocks = curve(runs, "a", "uniform")
    assert [(block.first, block.last) for block in blocks] == [(1, 2), (3, 4), (5, 5)]
    assert [block.mean for block in blocks] == pytest.approx([0.3, 0.6, 0.8])
    assert [block.baseline for block in blocks] == pytest.approx([0.15] * 3)
    last = paired([0.9 - 0.1, 0.7 - 0.2])
    assert vars(blocks[-1].difference) == pytest.approx(vars(last))
    assert blocks[0].difference.mean == pytest.approx(0.15)


def test_a_curve_without_shared_seeds_is_empty():
    runs = [run("a", 0), run("uniform", 1)]
    assert curve(runs, "a", "uniform") == []
