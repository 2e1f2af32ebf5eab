"""A gain over a GRPO whose steps are as large: read from a baseline's runs at several learning rates."""

import numpy as np
import pytest
from equal_kl import gain_interval
from equal_steps import arms_of, rows_of
from scipy import stats

from openrlhf_shear.lab.worth import LabRun, over_equal_steps, step_kl

ARMS = ((2.0, 0.55), (1.0, 0.4), (8.0, 0.7))  # KL and accuracy of a rule, and of GRPO at two rates


def run(seed, accuracy, kl):
    return LabRun("rule", seed, (accuracy,) * 12, accuracy, {"kl": (*[kl] * 10, 9.0, 9.0)}, 1.0)


def test_the_size_of_a_step_is_the_mean_kl_of_the_first_ten():
    assert step_kl([run(0, 0.5, 1e-4), run(1, 0.5, 3e-4)]) == pytest.approx(2e-4)


def test_a_rule_that_is_grpo_at_another_rate_gains_nothing():
    """KL grows by 8 for twice the rate, accuracy by 0.2: at the KL between them, 8 ** 0.5, GRPO has gained 0.1."""
    baselines = {
        rate: [run(s, 0.4 + gain + 0.01 * s, kl) for s in range(4)] for rate, gain, kl in ((1, 0, 1), (2, 0.2, 8))
    }
    rule = [run(s, 0.5 + 0.01 * s, 8**0.5) for s in range(4)]
    assert over_equal_steps(rule, baselines).mean == pytest.approx(0, abs=1e-12)
    better = over_equal_steps([run(s, 0.53 + 0.01 * s, 8**0.5) for s in range(4)], baselines)
    assert better.mean == pytest.approx(0.03) and better.seeds == 4
    assert over_equal_steps([run(0, 0.9, 8)], baselines).mean == pytest.approx(0.9 - 0.6)


def test_a_rule_s_own_curve_gives_its_gain_at_grpo_s_steps():
    """At twice the rate the rule's KL grows by 8 and its accuracy by 0.2; GRPO's KL lies at a third of the way."""
    curve = {rate: [run(s, 0.4 + gain + 0.01 * s, kl) for s in range(4)] for rate, gain, kl in ((1, 0, 1), (2, 0.2, 8))}
    grpo = [run(s, 0.43 + 0.02 * s, 2.0) for s in range(4)]
    found = over_equal_steps(grpo, curve, of_baseline=True)
    differences = [0.4 + 0.2 / 3 + 0.01 * s - 0.43 - 0.02 * s for s in range(4)]
    assert found.mean == pytest.approx(sum(differences) / 4) and found.seeds == 4
    assert over_equal_steps([run(0, 0.5, 9.0)], curve, of_baseline=True) is None


def test_the_interval_has_the_noise_of_the_step_sizes():
    """Compared with numerical differentiation over the seeds' weights, and with the jackknife."""
    rng = np.random.default_rng(0)
    own, slow, fast = ((kl * rng.lognormal(sigma=0.3, size=14), rng.normal(at, 0.02, 14)) for kl, at in ARMS)
    mine, *curve = ([run(s, a, kl) for s, (kl, a) in enumerate(zip(*arm, strict=True))] for arm in (own, slow, fast))
    found = over_equal_steps(mine, dict(enumerate(curve)))
    assert [found.mean, found.low, found.high] == pytest.approx(gain_interval(own, slow, fast), abs=1e-8)
    left = [over_equal_steps(mine[:i] + mine[i + 1 :], dict(enumerate(curve))).mean for i in range(14)]
    jackknife = (13 / 14 * np.sum((np.array(left) - np.mean(left)) ** 2)) ** 0.5
    assert found.half_width / stats.t.ppf(0.975, 13) == pytest.approx(jackknife, rel=0.02)  # measured: 0.6%


@pytest.mark.parametrize(
    ("kl", "rates"),
    [(0.5, (1, 2)), (9.0, (1, 2)), (3.0, (1,)), (3.0, ())],
    ids=["smaller than any", "larger than any", "one rate", "none"],
)
def test_nothing_is_extrapolated(kl, rates):
    baselines = {rate: [run(0, 0.4, 8 ** (rate - 1))] for rate in rates}
    assert over_equal_steps([run(0, 0.5, kl)], baselines) is None
    assert over_equal_steps([run(0, 0.5, 3.0), run(7, 0.5, 3.0)], {1: [run(0, 0.4, 1)], 2: [run(0, 0.4, 8)]}) is None


def kept(rule, rate, seed, accuracy, kl):
    """A row of a kept table: a run's file."""
    content = {"accuracy": [accuracy] * 10, "final": accuracy**2, "evaluations": [], "seconds": 1.0, "made": None}
    praise = [0.5] * 4 + [0.2, None, 0.4, 0.2, None, 0.2]
    metrics = {"kl": [kl] * 10, "positive_credit": praise, "negative_credit": [-kl] * 10}
    return content | {"rule": rule, "seed": seed, "metrics": metrics, "settings": {"learning_rate": rate}}


def test_kept_runs_are_compared_over_the_seeds_of_every_arm():
    rng = np.random.default_rng(0)
    arms = [
        ("uniform", 1e-4, 1.0),
        ("uniform", 2e-4, 8.0),
        ("mine", 1e-4, 2.0),
        ("mine", 5e-5, 0.5),
        ("mine/matched", 1e-4, 2.0),
    ]
    scores = {(rule, rate): rng.random(5) for rule, rate, _ in arms}
    table = [kept(rule, rate, seed, scores[rule, rate][seed], kl) for rule, rate, kl in arms for seed in range(5)]
    table.append(kept("uniform", 1e-4, 9, 0.1, 1.0))  # a seed of one arm
    table.append(kept("mine", 1e-4, 0, 0.1, 1.0) | {"settings": {"learning_rate": 1e-4, "mini_batches": 16}})
    rows = {(row["rule"], row["rate"]): row for row in rows_of(arms_of(table), 1e-4)}
    mine, slow, fast = rows["mine", 1e-4], scores["uniform", 1e-4], scores["uniform", 2e-4]
    assert mine["seeds"] == [*range(5)] and mine["kl"] == pytest.approx(2)
    expected = {
        "over_grpo": scores["mine", 1e-4] - slow,
        "at_the_end": scores["mine", 1e-4] ** 2 - slow**2,
        "over_tuned": scores["mine", 1e-4] - max(slow, fast, key=np.mean),
        "over_matched": scores["mine", 1e-4] - scores["mine/matched", 1e-4],
        "equal_steps": scores["mine", 1e-4] - slow - (fast - slow) / 3,  # 2 = 8 ** (1 / 3)
        "own_curve": (scores["mine", 5e-5] + scores["mine", 1e-4]) / 2 - slow,  # 1 lies between 0.5 and 2
    }
    for name, differences in expected.items():
        interval = stats.t.interval(0.95, 4, differences.mean(), stats.sem(differences))
        got = [mine[name][each] for each in ("mean", "low", "high")]
        assert got == pytest.approx([differences.mean(), *interval], abs=1e-9), name  # quantiles by other means
    left = [np.delete(expected["over_grpo"], i) for i in range(5)]
    ends = np.array([stats.t.interval(0.95, 3, each.mean(), stats.sem(each)) for each in left])
    assert [*mine["without_a_seed"].values()] == [pytest.approx([np.min(end), np.max(end)]) for end in ends.T]
    assert mine["along"] == {"kl": [2, 2, 2], "blame_over_praise": pytest.approx([4, 20 / 3, 10])}
    alone = rows["uniform", 1e-4]
    assert alone["over_grpo"] is alone["equal_steps"] is alone["own_curve"] is alone["over_matched"] is None
    assert rows_of(arms_of(table, range(2)), 1e-4)[0]["seeds"] == [0, 1]
    more = [*table, kept("oracle", 1e-4, 0, 0.9, 1.0)]  # a rule with one seed, left out
    assert rows_of(arms_of(more, rules=["mine"]), 1e-4)[-1]["seeds"] == [*range(5)]
    with pytest.raises(ValueError, match="no seed has a run of every arm"):
        arms_of([table[0], kept("mine", 1e-4, 9, 0.1, 1.0)])
