"""The analyses on synthetic tables whose answers are known: planted effects, planted confounds, and none."""

import numpy as np
import pandas
import pytest
from diagnosis_tables import drawn_prefixes, prefix_table, rollout
from scipy import stats

from openrlhf_shear.diagnosis.analyses.controls import (
    opposing_rollouts,
    position_control,
    quartiles,
    truncation,
    within_problems,
)
from openrlhf_shear.diagnosis.analyses.groups import group_accuracies
from openrlhf_shear.diagnosis.analyses.separation import separation
from openrlhf_shear.diagnosis.analyses.trend import aggregate_trend, stride_changes
from openrlhf_shear.report.bootstrap import Bootstrap

FEW = Bootstrap(20)


def chain(problem, distances, successes, sample=0, correct=True):
    """Prefixes of one rollout, every 5 tokens."""
    rollout = {"problem": problem, "sample": sample, "correct": correct}
    steps = enumerate(zip(distances, successes, strict=True))
    return [{**rollout, "position": 4 + 5 * step, "distance": d, "successes": s} for step, (d, s) in steps]


def values(estimates):
    return [estimate.value for estimate in estimates]


def test_curves_are_means_over_the_prefixes_of_a_position_and_rho_over_positions():
    rows = [row for i in range(12) for row in chain(f"p{i}", np.arange(1, 7) + i / 100, [15, 13, 12, 9, 4, 1])]
    rho = aggregate_trend(prefix_table(rows), FEW).every.rho
    assert (rho.value, rho.low, rho.high) == pytest.approx((-1, -1, -1))
    assert (rho.problems, rho.rows, rho.paper, rho.warning) == (12, 72, -0.96, None)
    prefixes = drawn_prefixes(np.random.default_rng(0), problems=12, samples=3)
    prefixes = prefixes[~((prefixes["problem"] == "p000") & (prefixes["sample"] > 0))]
    trend = aggregate_trend(prefixes, FEW)
    outcomes = prefixes[prefixes["correct"]], prefixes[~prefixes["correct"]]
    for curve, own in zip((trend.every, trend.correct, trend.incorrect), (prefixes, *outcomes), strict=True):
        means = own.groupby("position")[["accuracy", "distance"]].mean()
        assert curve.positions == means.index.tolist() and curve.accuracy[0].rows == (own["position"] == 4).sum()
        assert values(curve.accuracy) == pytest.approx(means["accuracy"])
        assert values(curve.distance) == pytest.approx(means["distance"])
        assert curve.rho.value == pytest.approx(stats.spearmanr(means["accuracy"], means["distance"]).statistic)


def test_positions_that_few_problems_reach_are_left_out_and_counted():
    rows = [row for i in range(12) for row in chain(f"p{i}", range(1, 4 + i), [8] * (3 + i))]
    curve = aggregate_trend(prefix_table(rows), FEW, min_problems=10).every
    assert (curve.positions, curve.left_out, curve.reach) == ([4, 9, 14, 19, 24], 9, 10)
    of_few = aggregate_trend(prefix_table(rows[:7]), FEW, min_problems=10).every  # two problems, of 3 and 4 prefixes
    assert (of_few.positions, of_few.left_out, of_few.reach) == ([4, 9, 14], 1, 2)
    assert of_few.rho.value is None  # the accuracy never changes


def test_early_and_late_prefixes_by_hand():
    rows = chain("a", [1, 2, 3, 4, 5, 6, 7, 8], [8] * 8) + chain("b", [10, 20, 30, 40], [8] * 4)
    cut = [0, 1, 0, 0, 0, 2, 4, 8, 1, 0, 0, 0]
    prefixes = prefix_table([{**row, "truncated": number} for row, number in zip(rows, cut, strict=True)])
    prefixes.loc[7, "completions"] = 8
    found = quartiles(prefixes, FEW)
    # positions 4 4 9 9 14 14 19 19 24 29 34 39: quartiles 9 and 25.25
    means = {"first": (1 + 2 + 10 + 20) / 4, "last": (6 + 7 + 8) / 3}
    means |= {"first_own": (1 + 2 + 10) / 3, "last_own": (7 + 8 + 40) / 3}
    means |= {f"difference{own}": means[f"last{own}"] - means[f"first{own}"] for own in ("", "_own")}
    means["ratio"] = means["last"] / means["first"]
    assert {name: estimate.value for name, estimate in found.items()} == pytest.approx(means)
    assert (found.ratio.paper, found.ratio.rows, found.ratio.problems) == (1.12, 3, 1)
    assert (found.first.rows, found.first.problems, found.last.problems) == (4, 2, 1)
    assert (found.first.paper, found.last.paper, found.difference.paper) == (0.67, 0.75, 0.08)
    shares = {"every": 16 / (11 * 16 + 8), "first": (0 + 1 + 1 + 0) / (4 * 16), "last": (2 + 4 + 8) / (16 + 16 + 8)}
    shares["difference"] = shares["last"] - shares["first"]
    found = truncation(prefixes, FEW)
    assert {name: estimate.value for name, estimate in found.items()} == pytest.approx(shares)
    assert [estimate.rows for estimate in found.values()] == [12, 4, 3, 3]
    assert (found.every.problems, found.last.problems) == (2, 1)


def test_changes_by_hand():
    rows = chain("a", [0.1, 0.2, 0.5, 0.9], [8, 8, 6, 3]) + chain("b", [0.5, 0.4, 0.1], [4, 5, 9])
    rows += chain("c", [0.5, 0.5, 9.0], [0, 0, 16])
    prefixes = prefix_table(rows)
    gap = (prefixes["problem"] == "c") & (prefixes["position"] == 9)
    found = stride_changes(prefixes[~gap], completions=16, stride=5, bootstrap=FEW)
    assert (found.strides, found.threshold) == (5, 0.0625)  # c has no neighbours left
    events = found.table[["d_accuracy", "d_distance"]].to_numpy()
    assert events == pytest.approx(np.array([[-2 / 16, 0.3], [-3 / 16, 0.4], [1 / 16, -0.1], [4 / 16, -0.3]]))
    assert found.table["position"].tolist() == [14, 19, 9, 14]
    assert (found.rho.value, found.rho.rows, found.rho.problems, found.rho.paper) == (pytest.approx(-1), 4, 2, -0.42)
    assert found.rho_strides.rows == 5
    assert found.rho_incorrect.value is None
    assert [level.change for level in found.levels] == [-3 / 16, -2 / 16, 1 / 16, 4 / 16]
    assert values(level.distance for level in found.levels) == pytest.approx([0.4, 0.3, -0.1, -0.3])


def test_the_threshold_is_one_completion_and_equal_fractions_are_ties():
    rows = chain("a", [1, 2, 3, 4], [15, 15, 16, 16])
    for row, completions in zip(rows, [15, 16, 16, 16], strict=True):  # whatever has a verdict
        row["completions"] = completions
    assert stride_changes(prefix_table(rows), 16, 5, FEW).table["d_accuracy"].tolist() == [-1 / 16, 1 / 16]
    rows = chain("a", [1, 2, 4, 7, 5], [1, 2, 3, 2, 4])  # 0.2 - 0.1 and 0.3 - 0.2 differ in their last bit
    found = stride_changes(prefix_table([{**row, "completions": 10} for row in rows]), 10, 5, FEW)
    assert found.rho.value == pytest.approx(stats.spearmanr([1, 1, -1, 2], [1, 2, 3, -2]).statistic)


def test_rhos_of_changes_against_scipy():
    prefixes = drawn_prefixes(np.random.default_rng(3), problems=20, positions=5, slope=-0.5)
    changes = prefixes.groupby(["problem", "sample"])[["accuracy", "distance"]].diff().round(9)
    own = prefixes.assign(a=changes["accuracy"], d=changes["distance"]).dropna(subset="d")
    events, found = own[own["a"].abs() > 1 / 17], stride_changes(prefixes, 16, 5, FEW)
    assert len(events) < len(own)
    parts = {"rho": events, "rho_correct": events[events["correct"]], "rho_incorrect": events[~events["correct"]]}
    for name, rows in (parts | {"rho_strides": own}).items():
        assert found[name].value == pytest.approx(stats.spearmanr(rows["a"], rows["d"]).statistic)
        assert found[name].rows == len(rows)


def test_bins_against_pandas_and_scipy():
    prefixes = drawn_prefixes(np.random.default_rng(8), problems=20, slope=-0.5)
    found = separation(prefixes, 16, FEW, bins=5)
    cut = pandas.qcut(prefixes["distance"], 5, labels=False)
    for b, bin_ in enumerate(found.bins):
        parts = [prefixes[(cut == b) & (prefixes["correct"] == outcome)] for outcome in (True, False)]
        for own, outcome in zip(parts, ("correct", "incorrect"), strict=True):
            mean, density = bin_[f"accuracy_{outcome}"], bin_[f"density_{outcome}"]
            assert (mean.value, mean.rows) == (pytest.approx(own["accuracy"].mean()), len(own))
            shares = own["successes"].value_counts(normalize=True).reindex(range(17), fill_value=0)
            assert values(density) == pytest.approx(shares.to_numpy()) and density[0].rows == len(own)
        won = stats.mannwhitneyu(*(own["accuracy"] for own in parts)).statistic
        assert bin_.auc.value == pytest.approx(won / (len(parts[0]) * len(parts[1])))
        assert bin_.auc.rows == bin_.distance.rows == (cut == b).sum()
        assert bin_.distance.value == pytest.approx(prefixes["distance"][cut == b].mean())
    assert [bin_.low for bin_ in found.bins[1:]] == [bin_.high for bin_ in found.bins[:-1]]
    assert found.levels == pytest.approx(np.arange(17) / 16)
    own, other = (prefixes["distance"][prefixes["correct"] == outcome] for outcome in (False, True))
    share = stats.mannwhitneyu(own, other).statistic / (len(own) * len(other))
    assert found.distance_auc.value == pytest.approx(share), "does the distance alone tell the outcome?"
    first, last = found.bins[0], found.bins[-1]
    for kind in ("", "_position"):
        assert found[f"rise{kind}"].value == pytest.approx(last[f"auc{kind}"].value - first[f"auc{kind}"].value)
    assert [bin_.auc.paper for bin_ in found.bins] == [0.65, None, None, None, 0.97]
    assert (found.spans_correct.value, found.spans_incorrect.paper) == (prefixes["correct"].sum(), 21_352)


def test_bins_that_differ_in_position_only_have_no_auc_at_fixed_position():
    rng, rows = np.random.default_rng(9), []
    for i in range(400):
        late = bool(rng.integers(2))
        row = {"position": 50, "successes": 4} if late else {"position": 4, "successes": 12}
        row |= {"correct": rng.random() < (0.2 if late else 0.8), "distance": rng.random()}
        rows.append({**row, "problem": f"p{i % 50}", "sample": i})
    bins = separation(prefix_table(rows), 16, FEW, bins=3).bins
    assert all(bin_.auc.value > 0.7 and bin_.auc_position.value == 0.5 for bin_ in bins)


@pytest.mark.parametrize(("rows", "bins"), [(19, 1), (41, 2), (1000, 10)])
def test_few_prefixes_make_few_bins_and_an_edge_is_in_the_bin_above(rows, bins):
    prefixes = prefix_table([{"problem": f"p{i}", "distance": i, "successes": i % 17} for i in range(rows)])
    edges = [(bin_.low, bin_.high, bin_.distance.rows) for bin_ in separation(prefixes, 16, FEW).bins]
    assert len(edges) == bins and edges[0][0] == 0 and edges[-1][1] == rows - 1
    for low, high, number in edges:
        assert number == sum(low <= i < high or i == high == rows - 1 for i in range(rows))
    same = separation(prefixes.assign(distance=0.5), 16, FEW)
    assert [(bin_.low, bin_.high, bin_.distance.rows) for bin_ in same.bins] == [(0.5, 0.5, rows)]


def test_a_trend_of_position_alone_vanishes_at_fixed_position():
    """Accuracy falls and distance rises with the position; at a position they go together."""
    steps = np.arange(8)
    prefixes = [row for i in range(60) for own in [i % 3 - 1]
                for row in chain(f"p{i}", 0.1 * steps + 0.01 * own, 14 - 1.5 * steps + own)]  # fmt: skip
    found = position_control(prefix_table(prefixes), Bootstrap(50))
    assert found.rho.value < -0.9
    assert found.rho_fixed.value == pytest.approx(1)
    assert [(group.first, group.last) for group in found.groups] == [(4, 9), (14, 19), (24, 29), (34, 39)]
    assert all(group.rho.value < 0 and group.rho_fixed.value == pytest.approx(1) for group in found.groups)
    assert [group.rho.paper for group in found.groups] == [-0.055, None, None, -0.225]
    assert found.rho_fixed_incorrect.value is None


def test_quantiles_within_a_group_of_positions_against_pandas():
    prefixes = drawn_prefixes(np.random.default_rng(11), problems=20, slope=-0.8)
    groups = position_control(prefixes, FEW, groups=2, quantiles=4).groups
    for group, own in zip(
        groups, (prefixes[prefixes["position"] < 22], prefixes[prefixes["position"] > 22]), strict=True
    ):
        means = own.groupby(pandas.qcut(own["distance"], 4, labels=False))[["distance", "accuracy"]].mean()
        assert values(group.accuracy) == pytest.approx(means["accuracy"])
        assert values(group.distance) == pytest.approx(means["distance"])
        assert group.rho.value == pytest.approx(stats.spearmanr(own["distance"], own["accuracy"]).statistic)


def test_rho_within_problems_against_pandas():
    prefixes = drawn_prefixes(np.random.default_rng(16), problems=12, samples=5, positions=3, slope=-1)
    prefixes = prefixes.drop(index=[0, 7, 20])
    found = within_problems(prefixes, prefixes["position"].to_numpy(), FEW)
    for estimate, own in ((found.rho, prefixes), (found.rho_incorrect, prefixes[~prefixes["correct"]])):
        ranked = own.groupby(["problem", "position"])[["distance", "accuracy"]]
        size = ranked.transform("size")
        ranks = (ranked.rank() - 0.5).div(size, axis=0) - 0.5
        correlation = ranks.prod(axis=1).sum() / np.sqrt((ranks**2).sum().prod())
        assert estimate.value == pytest.approx(correlation)
        assert estimate.rows == (size > 1).sum()
    assert within_problems(prefixes, np.ones(len(prefixes), dtype=int), FEW).opposing.value is None


def test_aucs_within_problems_against_all_pairs():
    prefixes = drawn_prefixes(np.random.default_rng(17), problems=12, samples=5, positions=3, slope=-1)
    cut = pandas.qcut(prefixes["distance"], 3, labels=False)
    found = separation(prefixes, 16, FEW, bins=3)
    first, _, last = (bin_.auc_problem for bin_ in found.bins)
    assert found.rise_problem.value == last.value - first.value
    assert (found.rise_problem.problems, found.rise_problem.rows) == min((b.problems, b.rows) for b in (first, last))
    alone = separation(prefixes.assign(distance=1.0), 16, FEW, bins=3).rise_problem
    assert alone.value is None and "two bins of distance" in alone.warning, "of a single bin"
    for b, bin_ in enumerate(found.bins):
        own = prefixes[cut == b].reset_index(names="row")
        pairs = own[own["correct"]].merge(own[~own["correct"]], on=["problem", "position"])
        won = (pairs["accuracy_x"] > pairs["accuracy_y"]) + 0.5 * (pairs["accuracy_x"] == pairs["accuracy_y"])
        assert bin_.auc_problem.value == pytest.approx(won.mean())
        assert bin_.auc_problem.rows == pairs["row_x"].nunique() + pairs["row_y"].nunique()
        assert bin_.auc_problem.problems == pairs["problem"].nunique()


def test_a_rise_to_a_bin_of_few_problems_has_a_warning():
    """Twelve problems have small distances, three of them large ones."""
    rows = []
    for number in range(12):
        for correct in (True, False):
            distances = [0.1] * 4 + [0.9] * (16 if number < 3 else 0)
            of = {"problem": str(number), "sample": int(correct), "correct": correct, "position": 9, "truncated": 0}
            rows += [{**of, "distance": d, "accuracy": float(correct), "completions": 8} for d in distances]
    found = separation(pandas.DataFrame(rows), 8, FEW, bins=2)
    assert [bin_.auc_problem.problems for bin_ in found.bins] == [12, 3]
    assert found.rise_problem.problems == 3 and "rests on 3 problems" in found.rise_problem.warning


def test_opposing_rollouts_are_the_graded_ones_of_the_other_outcome():
    outcomes = {"a": [True, False, False, None], "b": [True, True, True, False]}
    rollouts = [rollout(name, i, outcome) for name, of in outcomes.items() for i, outcome in enumerate(of)]
    rows = [("a", True), ("a", False), ("b", True), ("b", False), ("c", True)]
    prefixes = pandas.DataFrame(rows, columns=["problem", "correct"])
    assert opposing_rollouts(prefixes, rollouts).tolist() == [2, 1, 1, 3, 0]


def test_group_accuracies_by_hand():
    outcomes = {"a": [1, 1, 1, 1], "b": [0, 0, 0, 0], "c": [1, 0, 0, 0], "d": [1, 1, 1, None], "e": [0, 1, 1, None]}
    outcomes |= {"f": [0, 0, 1, 0], "g": [None] * 4}
    graded = [(name, i, outcome) for name, of in outcomes.items() for i, outcome in enumerate(of)]
    rollouts = [rollout(name, i, None if outcome is None else bool(outcome)) for name, i, outcome in graded]
    found = group_accuracies(rollouts, 4, FEW)
    levels = [(level.accuracy, level.groups) for level in found.levels]
    assert levels == [(0, 1), (0.25, 2), (0.5, 0), (0.75, 1), (1, 2)]
    shares = [level.retained_share and level.retained_share.value for level in found.levels]
    assert shares == pytest.approx([None, 2 / 3, 0, 1 / 3, None])
    assert (found.retained.value, found.retained.problems, found.retained.paper) == (0.5, 6, 0.838)
    assert (found.largest.value, found.largest.problems, found.left_out) == (pytest.approx(2 / 3), 3, 1)
    assert found.accuracy.value == pytest.approx((1 + 0 + 0.25 + 1 + 2 / 3 + 0.25) / 6)
    assert found.missing is None
    assert [group_accuracies(rollouts, 4, FEW, problems=number).missing for number in (7, 10)] == [0, 3]


def numbers_of(prefixes, bootstrap):
    """What does not depend on edges that a resample would move."""
    opposing = prefixes["problem"].str[1:4].astype(int).to_numpy() % 5  # of a copy as of its original
    analyses = [stride_changes(prefixes, 16, 5, bootstrap), aggregate_trend(prefixes, bootstrap, 1)]
    analyses += [position_control(prefixes, bootstrap), within_problems(prefixes, opposing, bootstrap)]
    analyses.append(truncation(prefixes, bootstrap))
    found = {
        what: estimate for made in analyses for what, estimate in made.numbers.items() if ", positions" not in what
    }
    return found | {"AUC within a problem": separation(prefixes, 16, bootstrap, bins=1).bins[0].auc_problem}


@pytest.fixture
def spoilt():
    """Prefixes with completions that were cut short."""
    prefixes = drawn_prefixes(np.random.default_rng(13), problems=12, samples=4, positions=4, slope=-1)
    return prefixes.assign(truncated=np.random.default_rng(15).integers(0, 5, len(prefixes)))


def test_intervals_are_those_of_tables_with_problems_repeated(spoilt):
    names, repeated = spoilt["problem"].unique(), []
    for weights in Bootstrap(15, 2).draws(12):
        parts = [
            spoilt[spoilt["problem"] == name].assign(problem=f"{name} {copy}")
            for name, times in zip(names, weights, strict=True)
            for copy in range(int(times))
        ]
        repeated.append({what: e.value for what, e in numbers_of(pandas.concat(parts), Bootstrap(1)).items()})
    for what, estimate in numbers_of(spoilt, Bootstrap(15, 2)).items():
        ends = np.quantile([numbers[what] for numbers in repeated], [0.025, 0.975])
        assert (estimate.low, estimate.high) == pytest.approx(tuple(ends), abs=1e-12), what
