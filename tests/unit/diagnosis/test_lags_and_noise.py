"""Changes at lags, binomial noise and the noise floor: planted effects, and numbers by hand."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from diagnosis_tables import SETTINGS, drawn_prefixes, drawn_rollouts, prefix_table
from scipy import stats

from openrlhf_shear.diagnosis.analyses.controls import noise_floor
from openrlhf_shear.diagnosis.analyses.trend import lagged_changes, stride_changes, stride_table
from openrlhf_shear.diagnosis.findings import find
from openrlhf_shear.report.bootstrap import Bootstrap
from openrlhf_shear.rollouts.localisation import split_auc

FEW = Bootstrap(20)
WINDOW, STRIDE = 10, 5


def walk(problem, sample, correct, distances, successes=None, completions=16):
    """Prefixes of one rollout, every 5 tokens from 10 on."""
    successes = [8] * len(distances) if successes is None else successes
    return [
        {"problem": problem, "sample": sample, "correct": correct, "position": WINDOW + STRIDE * step,
         "distance": d, "successes": s, "completions": completions}
        for step, (d, s) in enumerate(zip(distances, successes, strict=True))
    ]  # fmt: skip


def test_the_change_after_an_error_is_at_its_lag_and_without_what_correct_rollouts_do():
    """Every distance drifts by 0.1 a stride; that of a wrong rollout jumps by 0.5 one stride after the error's."""
    rows, errors = [], {}
    for i in range(12):
        stride = 2 + i % 3  # the prefix at 10 + 5 * stride is the first that holds the error
        errors[f"p{i}", 0] = WINDOW + STRIDE * (stride - 1) + i % STRIDE
        drift = 0.1 * np.arange(9)
        rows += walk(f"p{i}", 0, False, drift + 0.5 * (np.arange(9) > stride), [8] * stride + [4] * (9 - stride))
        rows += walk(f"p{i}", 1, True, drift)
        rows += walk(f"p{i}", 2, True, 9 * drift)  # a lucky one is no control
        errors[f"p{i}", 2] = 12
    found = lagged_changes(prefix_table(rows), errors, WINDOW, STRIDE, 16, FEW).errors
    assert [point.lag for point in found] == [-1, 0, 1, 2]
    assert [point.distance.value for point in found] == pytest.approx([0, 0, 0.5, 0], abs=1e-12)
    assert [point.accuracy.value for point in found] == pytest.approx([0, -0.25, 0, 0])
    assert [point.distance.rows for point in found] == [12] * 4
    assert found[1].distance.problems == 12


def test_without_known_errors_or_controls_there_is_no_event_study():
    rows = walk("p", 0, False, [0.1, 0.2, 0.3, 0.5]) + walk("q", 0, True, [0.1, 0.2, 0.3, 0.5])
    for errors in ({}, {("p", 0): 16}):
        found = lagged_changes(prefix_table(rows), errors, WINDOW, STRIDE, 16, FEW)
        assert all(point.distance.value is None for point in found.errors)


def test_a_distance_that_follows_two_strides_later_is_found_there():
    rng, rows = np.random.default_rng(0), []
    for i in range(60):
        successes = rng.integers(0, 17, 8)
        change = np.diff(successes, prepend=successes[0]) / 16
        distance = np.cumsum(np.concatenate([rng.normal(0, 0.01, 2), -change[:-2]]))
        rows += walk(f"p{i}", 0, bool(i % 2), distance, successes)
    prefixes = prefix_table(rows)
    found = lagged_changes(prefixes, {}, WINDOW, STRIDE, 16, FEW).lags
    assert [point.lag for point in found] == [0, 1, 2] and found[2].rho.value < -0.99
    assert abs(found[0].rho.value) < 0.3
    same = stride_changes(prefixes, 16, STRIDE, FEW).rho_position  # the paper's, at fixed position
    assert (found[0].rho.value, found[0].rho.rows) == (same.value, same.rows)
    frame = prefixes.assign(
        a=prefixes.groupby("problem")["accuracy"].diff(), d=prefixes.groupby("problem")["distance"].diff()
    )
    frame["later"] = frame.groupby("problem")["d"].shift(-1)
    own = frame[(frame["a"].abs() > 0.01) & frame["later"].notna()]
    ranks = own.groupby("position")[["a", "later"]]
    ranks = (ranks.rank() - 0.5).div(ranks.transform("size"), axis=0) - 0.5
    assert found[1].rho.value == pytest.approx(ranks.prod(axis=1).sum() / np.sqrt((ranks**2).sum().prod()))


@pytest.mark.parametrize(("n", "m"), [(4, 4), (3, 4), (1, 1)])
def test_the_chance_of_an_event_is_counted_out(n, m):
    """Of all ways to deal the verdicts of two prefixes out again."""
    for k, j in itertools.product(range(n + 1), range(m + 1)):
        rows = walk("p", 0, True, [0.1, 0.2], [k, j])
        rows[0]["completions"], rows[1]["completions"] = n, m
        (row,) = stride_table(prefix_table(rows), STRIDE, 4).itertuples()
        verdicts = [1] * (k + j) + [0] * (n + m - k - j)
        dealt = list(itertools.combinations(range(n + m), n))
        parts = [sum(verdicts[i] for i in part) for part in dealt]
        events = [abs(part / n - (k + j - part) / m) >= 0.25 - 1e-9 for part in parts]
        assert row.chance == pytest.approx(np.mean(events))
        assert row.event == (abs(k / n - j / m) >= 0.25 - 1e-9)
        noise = sum(p * (1 - p) / (size - 1) if size > 1 else math.nan for p, size in ((k / n, n), (j / m, m)))
        assert row.noise == pytest.approx(noise, nan_ok=True)


def test_noise_shrinks_a_correlation_by_the_attenuation():
    """At 16 completions, Pearson's r of the measured changes is that of the true rates, times the attenuation."""
    rng, rows, true = np.random.default_rng(5), [], []
    for i in range(1500):
        rates = rng.uniform(0.2, 0.8, 3)
        distances = -rates + rng.normal(0, 0.1, 3)
        true += list(zip(np.diff(rates), np.diff(distances), strict=True))
        rows += walk(f"p{i}", 0, True, distances, rng.binomial(16, rates))
    prefixes = prefix_table(rows)
    table = stride_table(prefixes, STRIDE, 16)
    measured = stats.pearsonr(table["d_accuracy"], table["d_distance"]).statistic
    expected = (
        stats.pearsonr(*np.transpose(true)).statistic * stride_changes(prefixes, 16, STRIDE, FEW).attenuation.value
    )
    assert measured == pytest.approx(expected, abs=0.02)
    same = prefix_table(
        [row for i in range(300) for row in walk(f"p{i}", 0, True, [0.0] * 5, rng.binomial(16, 0.5, 5))]
    )
    found = stride_changes(same, 16, STRIDE, FEW)
    assert found.reliability.value == pytest.approx(0, abs=0.08), "draws at one rate are all noise"
    assert found.events.value == pytest.approx(found.events_by_chance.value, abs=0.02)


def test_the_noise_floor_by_hand():
    rows = walk("a", 0, False, [0.2, 0.6, 2.0, 9.0]) + walk("b", 0, True, [0.4, 5.0])
    for row, same in zip(rows, [0.1, 0.3, 0.2, math.inf, 0.2, 0.2], strict=True):
        row["same_distance"] = same
    found = noise_floor(prefix_table(rows), {("a", 0): 10}, 5, 1.5, FEW, risk=0.1)
    eta, mean = 0.2, (0.2 + 0.6 + 2.0 + 0.4 + 5.0) / 5
    u = 1.5 * math.sqrt(2 * math.log(10) / 5)
    assert math.exp(-5 * u**2 / (2 * 1.5**2)) == pytest.approx(0.1) and found.deviation == pytest.approx(u)
    assert (found.eta.value, found.opposing.value, found.eta.rows) == (pytest.approx(eta), pytest.approx(mean), 5)
    assert found.ratio_low.value == pytest.approx(mean / eta - 1) and found.ratio_high.value == pytest.approx(
        mean / eta + 1
    )
    assert found.separated.value == pytest.approx(2 / 5)  # 2.0 and 5.0 are over 0.6
    assert found.sure.value == pytest.approx(sum(w > 0.6 + 2 * u for w in (0.2, 0.6, 2.0, 0.4, 5.0)) / 5)
    # the first window is of tokens 0 to 9, the second begins at 10 (it has 5), the third at 15
    assert (found.before.value, found.before.rows) == (0.2, 1) and found.same_before.value == pytest.approx(0.1)
    assert (found.after.value, found.after.rows) == (2.0, 1) and found.same_after.value == pytest.approx(0.2)


def test_controls_of_the_first_error_weigh_tokens_by_the_other_distances():
    """Spans of 5 tokens every 5: a token has the distance of its span. The first rollout has no other like it."""
    rng, rollouts = np.random.default_rng(8), []
    for drawn in drawn_rollouts(rng, groups=12):
        if drawn.weights:
            same, permuted = rng.random((2, 8)).tolist()
            drawn = replace(drawn, same_distances=same, permuted_distances=permuted)
        rollouts.append(drawn)
    first = next(i for i, drawn in enumerate(rollouts) if drawn.weights and drawn.first_error)
    rollouts[first] = replace(rollouts[first], same_distances=[math.inf] * 8)
    prefixes = drawn_prefixes(rng, problems=12).assign(same_distance=1.0, permuted_distance=2.0)
    controls = find(prefixes, rollouts, SETTINGS | {"window": 5}, resamples=5).results["analyses"]["controls"]
    measured = [drawn for i, drawn in enumerate(rollouts) if drawn.weights and drawn.first_error and i != first]
    columns = {"opposing": "span_distances", "same": "same_distances", "permuted": "permuted_distances"}
    for kind, column in columns.items():
        aucs = [split_auc(np.repeat(getattr(drawn, column), 5), drawn.first_error) for drawn in measured]
        found = controls[kind]["first_errors"]
        assert found.rollouts == len(aucs) > 20 and found.auc.value == pytest.approx(np.mean(aucs))
        # all rollouts oppose, measured or not
        assert controls[kind]["within"].opposing.rows == controls["opposing"]["within"].opposing.rows


def test_controls_are_the_analyses_of_other_distances_on_the_same_rows():
    rng = np.random.default_rng(7)
    prefixes, rollouts = drawn_prefixes(rng, problems=14, positions=5, slope=-0.5), drawn_rollouts(rng, groups=14)
    prefixes = prefixes.assign(same_distance=prefixes["distance"] + 1, permuted_distance=rng.random(len(prefixes)))
    prefixes.loc[[3, 8], "same_distance"] = math.inf
    found = find(prefixes, rollouts, SETTINGS, resamples=5)
    controls = found.results["analyses"]["controls"]
    assert list(controls) == ["opposing", "same", "permuted"]
    own, same, permuted = (controls[kind]["separation"]["distance_auc"] for kind in controls)
    assert own.value == same.value != permuted.value and own.rows == permuted.rows == len(prefixes) - 2
    table = found.tables[1]
    assert table.header[1:] == ("Other outcome", "Same outcome", "Outcomes in a random order")
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["AUC of the distance between them"] == tuple(estimate.text(".3f") for estimate in (own, same, permuted))
    assert "Prefixes of originally correct rollouts" not in rows  # the same for all
    assert found.results["analyses"]["noise"].largest_norm == 1.0  # not known
    assert not any("--controls" in note for note in found.notes)
