"""The analyses on synthetic tables whose answers are known: planted effects, planted confounds, and none."""

import numpy as np
import pandas
import pytest
from diagnosis_tables import drawn_prefixes, prefix_table, rollout
from scipy import stats

from openrlhf_shear.diagnosis.analyses.changes import stride_changes
from openrlhf_shear.diagnosis.analyses.groups import group_accuracies
from openrlhf_shear.diagnosis.analyses.positions import position_control
from openrlhf_shear.diagnosis.analyses.separation import separation
from openrlhf_shear.diagnosis.analyses.trend import aggregate_trend, quartiles
from openrlhf_shear.diagnosis.analyses.truncation import truncation
from openrlhf_shear.diagnosis.analyses.within import opposing_rollouts, within_problems
from openrlhf_shear.report.bootstrap import Bootstrap

FEW = Bootstrap(20)


def chain(problem, distances, successes, sample=0, correct=True):
    """Prefixes of one rollout, every 5 tokens."""
    rollout = {"problem": problem, "sample": sample, "correct": correct}
    steps = enumerate(zip(distances, successes, strict=True))
    return [{**rollout, "position": 4 + 5 * step, "distance": d, "successes": s} for step, (d, s) in steps]


def values(estimates):
    return [estimate.value for estimate in estimates]


# --- aggregate trend and quartiles


def test_a_planted_trend_is_found_exactly():
    rows = [row for i in range(12) for row in chain(f"p{i}", np.arange(1, 7) + i / 100, [15, 13, 12, 9, 4, 1])]
    curve = aggregate_trend(prefix_table(rows), FEW).every
    assert curve.positions == [4, 9, 14, 19, 24, 29]
    assert values(curve.accuracy) == pytest.approx(np.array([15, 13, 12, 9, 4, 1]) / 16)
    assert values(curve.distance) == pytest.approx(np.arange(1, 7) + 0.055)
    assert (curve.rho.value, curve.rho.low, curve.rho.high) == pytest.approx((-1, -1, -1))
    assert (curve.rho.problems, curve.rho.rows, curve.rho.paper, curve.rho.warning) == (12, 72, -0.96, None)
    assert curve.accuracy[0].rows == 12


def test_means_of_a_position_are_over_its_prefixes():
    prefixes = drawn_prefixes(np.random.default_rng(0), problems=12, samples=3)
    prefixes = prefixes[~((prefixes["problem"] == "p000") & (prefixes["sample"] > 0))]
    trend = aggregate_trend(prefixes, FEW)
    for curve, own in ((trend.every, prefixes), (trend.incorrect, prefixes[~prefixes["correct"]])):
        means = own.groupby("position")[["accuracy", "distance"]].mean()
        assert values(curve.accuracy) == pytest.approx(means["accuracy"])
        assert curve.rho.value == pytest.approx(stats.spearmanr(means["accuracy"], means["distance"]).statistic)


def test_positions_that_few_problems_reach_are_left_out_and_counted():
    rows = [row for i in range(12) for row in chain(f"p{i}", range(1, 4 + i), [8] * (3 + i))]
    curve = aggregate_trend(prefix_table(rows), FEW, min_problems=10).every
    assert (curve.positions, curve.left_out, curve.reach) == ([4, 9, 14, 19, 24], 9, 10)
    of_few = aggregate_trend(prefix_table(rows[:7]), FEW, min_problems=10).every  # two problems, of 3 and 4 prefixes
    assert (of_few.positions, of_few.left_out, of_few.reach) == ([4, 9, 14], 1, 2)
    assert of_few.rho.value is None  # the accuracy never changes


def test_quartiles_by_hand():
    rows = chain("a", [1, 2, 3, 4, 5, 6, 7, 8], [8] * 8) + chain("b", [10, 20, 30, 40], [8] * 4)
    found = quartiles(prefix_table(rows), FEW)
    # positions 4 4 9 9 14 14 19 19 24 29 34 39: quartiles 9 and 25.25
    assert found.first.value == pytest.approx((1 + 2 + 10 + 20) / 4)
    assert found.last.value == pytest.approx((6 + 7 + 8) / 3)
    assert (found.first.rows, found.first.problems, found.last.problems) == (4, 2, 1)
    assert (found.first.paper, found.last.paper, found.difference.paper) == (0.67, 0.75, 0.08)
    assert found.difference.value == pytest.approx((6 + 7 + 8) / 3 - (1 + 2 + 10 + 20) / 4)
    assert found.first_own.value == pytest.approx((1 + 2 + 10) / 3)
    assert found.last_own.value == pytest.approx((7 + 8 + 40) / 3)
    assert found.difference_own.value == pytest.approx((7 + 8 + 40 - 1 - 2 - 10) / 3)


# --- stride-wise changes


def test_changes_by_hand():
    rows = chain("a", [0.1, 0.2, 0.5, 0.9], [8, 8, 6, 3]) + chain("b", [0.5, 0.4, 0.1], [4, 5, 9])
    rows += chain("c", [0.5, 0.5, 9.0], [0, 0, 16])
    prefixes = prefix_table(rows)
    gap = (prefixes["problem"] == "c") & (prefixes["position"] == 9)
    found = stride_changes(prefixes[~gap], completions=16, stride=5, bootstrap=FEW)
    assert (found.strides, found.threshold) == (5, 0.0625)  # c has no neighbours left
    events = found.events[["d_accuracy", "d_distance"]].to_numpy()
    assert events == pytest.approx(np.array([[-2 / 16, 0.3], [-3 / 16, 0.4], [1 / 16, -0.1], [4 / 16, -0.3]]))
    assert found.events["position"].tolist() == [14, 19, 9, 14]
    assert (found.rho.value, found.rho.rows, found.rho.problems, found.rho.paper) == (pytest.approx(-1), 4, 2, -0.42)
    assert found.rho_strides.rows == 5
    assert found.rho_incorrect.value is None
    assert [level.change for level in found.levels] == [-3 / 16, -2 / 16, 1 / 16, 4 / 16]
    assert values(level.distance for level in found.levels) == pytest.approx([0.4, 0.3, -0.1, -0.3])


def test_the_threshold_is_one_completion_whatever_has_a_verdict():
    rows = chain("a", [1, 2, 3, 4], [15, 15, 16, 16])
    for row, completions in zip(rows, [15, 16, 16, 16], strict=True):
        row["completions"] = completions
    found = stride_changes(prefix_table(rows), 16, 5, FEW)
    assert found.events["d_accuracy"].tolist() == [-1 / 16, 1 / 16]


def test_changes_that_are_equal_as_fractions_are_ties():
    rows = chain("a", [1, 2, 4, 7, 5], [1, 2, 3, 2, 4])  # 0.2 - 0.1 and 0.3 - 0.2 differ in their last bit
    found = stride_changes(prefix_table([{**row, "completions": 10} for row in rows]), 10, 5, FEW)
    assert found.rho.value == pytest.approx(stats.spearmanr([1, 1, -1, 2], [1, 2, 3, -2]).statistic)


def test_changes_that_differ_by_position_only_are_gone_at_fixed_position():
    rows = []
    for i in range(40):  # all rise with the first stride and fall with the second; within a stride, against each other
        own = i % 4
        rows += chain(f"p{i}", [1, 2 - own / 100, 1], [4, 10 + own, 5])
    found = stride_changes(prefix_table(rows), 16, 5, FEW)
    assert found.rho.value > 0.5
    assert found.rho_position.value == pytest.approx(-1)


def test_rhos_of_changes_against_scipy():
    prefixes = drawn_prefixes(np.random.default_rng(3), problems=20, positions=5, slope=-0.5)
    changes = prefixes.groupby(["problem", "sample"])[["accuracy", "distance"]].diff().round(9)
    own = prefixes.assign(a=changes["accuracy"], d=changes["distance"]).dropna(subset="d")
    events, found = own[own["a"].abs() > 1 / 17], stride_changes(prefixes, 16, 5, FEW)
    assert len(events) < len(own)
    for estimate, rows in (
        (found.rho, events),
        (found.rho_correct, events[events["correct"]]),
        (found.rho_incorrect, events[~events["correct"]]),
        (found.rho_strides, own),
    ):
        assert estimate.value == pytest.approx(stats.spearmanr(rows["a"], rows["d"]).statistic)
        assert estimate.rows == len(rows)


def test_no_effect_and_the_interval_covers_zero():
    covered = 0
    for seed in range(40):
        prefixes = drawn_prefixes(np.random.default_rng(seed), problems=25, positions=5, gap=0)
        found = stride_changes(prefixes, 16, 5, Bootstrap(200, seed))
        covered += found.rho.low <= 0 <= found.rho.high
        if seed < 3:
            control = position_control(prefixes, Bootstrap(200, seed)).rho_fixed
            rise = separation(prefixes, 16, Bootstrap(200, seed)).rise
            assert control.low < 0 < control.high and rise.low < 0 < rise.high
    assert covered >= 33  # of 40: 38 expected, less than 33 has a chance below 0.003 at a coverage of 0.94


# --- accuracy, AUC and densities by distance


def test_bins_against_pandas_and_scipy():
    prefixes = drawn_prefixes(np.random.default_rng(8), problems=20, slope=-0.5)
    found = separation(prefixes, 16, FEW, bins=5)
    cut = pandas.qcut(prefixes["distance"], 5, labels=False)
    for b, one in enumerate(found.bins):
        parts = [prefixes[(cut == b) & (prefixes["correct"] == outcome)] for outcome in (True, False)]
        means, densities = (
            (one.accuracy_correct, one.accuracy_incorrect),
            (one.density_correct, one.density_incorrect),
        )
        for own, mean, density in zip(parts, means, densities, strict=True):
            assert (mean.value, mean.rows) == (pytest.approx(own["accuracy"].mean()), len(own))
            shares = own["successes"].value_counts(normalize=True).reindex(range(17), fill_value=0)
            assert values(density) == pytest.approx(shares.to_numpy())
            assert density[0].rows == len(own)
        won = stats.mannwhitneyu(*(own["accuracy"] for own in parts)).statistic
        assert one.auc.value == pytest.approx(won / (len(parts[0]) * len(parts[1])))
        assert one.auc.rows == one.distance.rows == (cut == b).sum()
        assert one.distance.value == pytest.approx(prefixes["distance"][cut == b].mean())
    assert [one.low for one in found.bins[1:]] == [one.high for one in found.bins[:-1]]
    assert found.levels == pytest.approx(np.arange(17) / 16)
    assert found.rise.value == pytest.approx(found.bins[-1].auc.value - found.bins[0].auc.value)
    assert [one.auc.paper for one in found.bins] == [0.65, None, None, None, 0.97]
    assert (found.spans_correct.value, found.spans_incorrect.paper) == (prefixes["correct"].sum(), 21_352)


def test_the_distance_alone_has_an_auc_too():
    distances = [0.1, 0.4, 0.2, 0.3]
    rows = [{"problem": f"p{i}", "correct": i < 2, "distance": d, "successes": 8} for i, d in enumerate(distances)]
    found = separation(prefix_table(rows), 16, FEW)
    assert found.distance_auc.value == pytest.approx(0.5)  # 0.2 and 0.3 are over 0.1 and under 0.4
    rows[1]["distance"] = 0.25
    assert separation(prefix_table(rows), 16, FEW).distance_auc.value == pytest.approx(0.75)


def test_bins_that_differ_in_position_only_have_no_auc_at_fixed_position():
    rng, rows = np.random.default_rng(9), []
    for i in range(400):
        late = bool(rng.integers(2))
        correct = rng.random() < (0.2 if late else 0.8)
        row = {"position": 50, "successes": 4} if late else {"position": 4, "successes": 12}
        rows.append({**row, "problem": f"p{i % 50}", "sample": i, "correct": correct, "distance": rng.random()})
    for one in separation(prefix_table(rows), 16, FEW, bins=3).bins:
        assert one.auc.value > 0.7
        assert one.auc_position.value == 0.5


def test_a_distance_at_an_edge_is_in_the_bin_above():
    prefixes = prefix_table([{"problem": f"p{i}", "distance": i, "successes": i % 17} for i in range(41)])
    found = [(one.low, one.high, one.distance.rows) for one in separation(prefixes, 16, FEW, bins=2).bins]
    assert found == [(0, 20, 20), (20, 40, 21)]


@pytest.mark.parametrize(("rows", "bins"), [(19, 1), (59, 2), (1000, 10)])
def test_few_prefixes_make_few_bins(rows, bins):
    prefixes = prefix_table([{"problem": f"p{i}", "distance": i, "successes": i % 17} for i in range(rows)])
    assert len(separation(prefixes, 16, FEW).bins) == bins
    same = separation(prefixes.assign(distance=0.5), 16, FEW)
    assert [(one.low, one.high, one.distance.rows) for one in same.bins] == [(0.5, 0.5, rows)]


# --- position-controlled bins


def test_a_clock_alone_is_gone_at_fixed_position():
    """Accuracy falls and distance rises with the position; at a position they go together."""
    rows = []
    for i in range(60):
        own = i % 3 - 1
        rows += chain(
            f"p{i}", [0.1 * step + 0.01 * own for step in range(8)], [14 - 1.5 * step + own for step in range(8)]
        )
    found = position_control(prefix_table(rows), Bootstrap(50))
    assert found.rho.value < -0.9
    assert found.rho_fixed.value == pytest.approx(1)
    assert [(group.first, group.last) for group in found.groups] == [(4, 9), (14, 19), (24, 29), (34, 39)]
    assert all(group.rho.value < 0 and group.rho_fixed.value == pytest.approx(1) for group in found.groups)
    assert [group.rho.paper for group in found.groups] == [-0.055, None, None, -0.225]
    assert found.rho_fixed_incorrect.value is None


def test_quantiles_within_a_group_of_positions_against_pandas():
    prefixes = drawn_prefixes(np.random.default_rng(11), problems=20, slope=-0.8)
    found = position_control(prefixes, FEW, groups=2, quantiles=4)
    for group, own in zip(
        found.groups, (prefixes[prefixes["position"] < 22], prefixes[prefixes["position"] > 22]), strict=True
    ):
        means = own.groupby(pandas.qcut(own["distance"], 4, labels=False))[["distance", "accuracy"]].mean()
        assert values(group.accuracy) == pytest.approx(means["accuracy"])
        assert values(group.distance) == pytest.approx(means["distance"])
        assert group.rho.value == pytest.approx(stats.spearmanr(own["distance"], own["accuracy"]).statistic)


# --- within problems


def confounded(seed):
    """Easy problems: few opposing rollouts, so a large distance of correct ones; hard ones mirror that."""
    rng, rows, rollouts = np.random.default_rng(seed), [], []
    for i in range(60):
        correct = 1 + i % 7  # of 8
        rollouts += [rollout(f"p{i}", sample, sample < correct) for sample in range(8)]
        for sample in range(8):
            near = 8 - correct if sample < correct else correct
            distances = 0.9 - 0.05 * near + rng.normal(0, 0.05, 4)
            rows += chain(f"p{i}", distances, rng.binomial(16, correct / 8, 4), sample, sample < correct)
    prefixes = prefix_table(rows)
    return prefixes, opposing_rollouts(prefixes, rollouts)


def test_what_differs_between_problems_only_is_gone_within_them():
    prefixes, opposing = confounded(0)
    found, pooled = within_problems(prefixes, opposing, Bootstrap(200)), position_control(prefixes, Bootstrap(50))
    assert pooled.rho_fixed_correct.low > 0.5 and pooled.rho_fixed_incorrect.high < -0.5
    for estimate in (found.rho, found.rho_correct, found.rho_incorrect):
        assert estimate.low < 0 < estimate.high and abs(estimate.value) < 0.1
    for estimate in (found.opposing, found.opposing_correct, found.opposing_incorrect):
        assert estimate.high < -0.7
    separated = separation(prefixes, 16, Bootstrap(200), bins=2)
    for one in separated.bins:
        assert one.auc_problem.low < 0.5 < one.auc_problem.high
    assert separated.bins[1].auc_position.low > 0.8
    assert separated.rise_position.low > 0.1
    assert separated.rise_problem.low < 0 < separated.rise_problem.high


def test_intervals_within_problems_cover_zero_where_only_problems_differ():
    covered = np.zeros(3, dtype=int)
    for seed in range(30):
        found = within_problems(*confounded(seed), Bootstrap(100, seed))
        covered += [e.low <= 0 <= e.high for e in (found.rho, found.rho_correct, found.rho_incorrect)]
    assert covered.min() >= 24  # of 30: 28 expected, less than 24 has a chance below 0.005 each at a coverage of 0.93


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
    first, _, last = (one.auc_problem for one in found.bins)
    assert (found.rise_problem.value, found.rise_problem.rows) == (last.value - first.value, first.rows + last.rows)
    for b, one in enumerate(found.bins):
        own = prefixes[cut == b].reset_index(names="row")
        pairs = own[own["correct"]].merge(own[~own["correct"]], on=["problem", "position"])
        won = (pairs["accuracy_x"] > pairs["accuracy_y"]) + 0.5 * (pairs["accuracy_x"] == pairs["accuracy_y"])
        assert one.auc_problem.value == pytest.approx(won.mean())
        assert one.auc_problem.rows == pairs["row_x"].nunique() + pairs["row_y"].nunique()
        assert one.auc_problem.problems == pairs["problem"].nunique()


def test_opposing_rollouts_are_the_graded_ones_of_the_other_outcome():
    outcomes = {"a": [True, False, False, None], "b": [True, True, True, False]}
    rollouts = [rollout(name, i, one) for name, of in outcomes.items() for i, one in enumerate(of)]
    rows = [("a", True), ("a", False), ("b", True), ("b", False), ("c", True)]
    prefixes = pandas.DataFrame(rows, columns=["problem", "correct"])
    assert opposing_rollouts(prefixes, rollouts).tolist() == [2, 1, 1, 3, 0]


# --- completions at the token limit


def test_truncation_by_hand():
    rows = chain("a", [1] * 8, [8] * 8) + chain("b", [1] * 4, [8] * 4)
    cut = dict(zip(range(12), [0, 1, 0, 0, 0, 2, 4, 8, 1, 0, 0, 0], strict=True))
    prefixes = prefix_table([{**row, "truncated": cut[i]} for i, row in enumerate(rows)])
    prefixes.loc[7, "completions"] = 8
    found = truncation(prefixes, FEW)
    # positions 4 4 9 9 14 14 19 19 24 29 34 39: quartiles 9 and 25.25, as of the distances
    assert found.every.value == pytest.approx(16 / (11 * 16 + 8))
    assert found.first.value == pytest.approx((0 + 1 + 1 + 0) / (4 * 16))
    assert found.last.value == pytest.approx((2 + 4 + 8) / (16 + 16 + 8))
    assert found.difference.value == pytest.approx(found.last.value - found.first.value)
    assert (found.every.rows, found.first.rows, found.last.rows, found.difference.rows) == (12, 4, 3, 7)
    assert (found.every.problems, found.last.problems) == (2, 1)


# --- groups


def test_group_accuracies_by_hand():
    outcomes = {"a": [1, 1, 1, 1], "b": [0, 0, 0, 0], "c": [1, 0, 0, 0], "d": [1, 1, 1, None], "e": [0, 1, 1, None]}
    outcomes |= {"f": [0, 0, 1, 0], "g": [None] * 4}
    graded = [(name, i, one) for name, of in outcomes.items() for i, one in enumerate(of)]
    rollouts = [rollout(name, i, None if one is None else bool(one)) for name, i, one in graded]
    found = group_accuracies(rollouts, 4, FEW)
    levels = [(level.accuracy, level.groups) for level in found.levels]
    assert levels == [(0, 1), (0.25, 2), (0.5, 0), (0.75, 1), (1, 2)]
    shares = [level.retained_share and level.retained_share.value for level in found.levels]
    assert shares == pytest.approx([None, 2 / 3, 0, 1 / 3, None])
    assert (found.retained.value, found.retained.problems, found.retained.paper) == (0.5, 6, 0.838)
    assert (found.largest.value, found.largest.problems, found.left_out) == (pytest.approx(2 / 3), 3, 1)
    assert found.accuracy.value == pytest.approx((1 + 0 + 0.25 + 1 + 2 / 3 + 0.25) / 6)
    assert found.missing is None
    assert [group_accuracies(rollouts, 4, FEW, asked=asked).missing for asked in (7, 10)] == [0, 3]


# --- the bootstrap, end to end


def spoilt(prefixes):
    """With completions that were cut short."""
    return prefixes.assign(truncated=np.random.default_rng(15).integers(0, 5, len(prefixes)))


def numbers_of(prefixes, bootstrap):
    """What does not depend on edges that a resample would move."""
    found = stride_changes(prefixes, 16, 5, bootstrap).numbers | aggregate_trend(prefixes, bootstrap, 1).numbers
    control = position_control(prefixes, bootstrap).numbers
    opposing = prefixes["problem"].str[1:4].astype(int).to_numpy() % 5  # of a copy as of its original
    found |= within_problems(prefixes, opposing, bootstrap).numbers | truncation(prefixes, bootstrap).numbers
    found["AUC within a problem"] = separation(prefixes, 16, bootstrap, bins=1).bins[0].auc_problem
    return {what: e for what, e in (found | control).items() if ", positions" not in what}


def test_intervals_are_those_of_tables_with_problems_repeated():
    prefixes = spoilt(drawn_prefixes(np.random.default_rng(13), problems=12, samples=4, positions=4, slope=-1))
    names = prefixes["problem"].unique()
    repeated = []
    for weights in Bootstrap(15, 2).draws(12):
        parts = [
            prefixes[prefixes["problem"] == name].assign(problem=f"{name} {copy}")
            for name, times in zip(names, weights, strict=True)
            for copy in range(int(times))
        ]
        repeated.append({what: e.value for what, e in numbers_of(pandas.concat(parts), Bootstrap(1)).items()})
    for what, estimate in numbers_of(prefixes, Bootstrap(15, 2)).items():
        ends = np.quantile([one[what] for one in repeated], [0.025, 0.975])
        assert (estimate.low, estimate.high) == pytest.approx(tuple(ends), abs=1e-12), what


def test_copies_of_rollouts_change_no_number():
    prefixes = spoilt(drawn_prefixes(np.random.default_rng(14), problems=12, samples=4, positions=4, slope=-1))
    copies = pandas.concat([prefixes.assign(sample=prefixes["sample"] + 4 * copy) for copy in range(10)])
    once, often = numbers_of(prefixes, Bootstrap(30)), numbers_of(copies, Bootstrap(30))
    for what, estimate in once.items():
        assert (often[what].value, often[what].low, often[what].high) == pytest.approx(
            (estimate.value, estimate.low, estimate.high), abs=1e-12
        ), what
        assert often[what].rows == 10 * estimate.rows
