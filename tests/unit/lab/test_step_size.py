"""A gain over a GRPO whose steps are as large: read from a baseline's runs at several learning rates."""

import pytest

from openrlhf_shear.lab.worth import LabRun, at_the_baseline_s_steps, over_equal_steps, step_kl


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
    found = at_the_baseline_s_steps(curve, grpo)
    differences = [0.4 + 0.2 / 3 + 0.01 * s - 0.43 - 0.02 * s for s in range(4)]
    assert found.mean == pytest.approx(sum(differences) / 4) and found.seeds == 4
    assert at_the_baseline_s_steps(curve, [run(0, 0.5, 9.0)]) is None


@pytest.mark.parametrize(
    ("kl", "rates"),
    [(0.5, (1, 2)), (9.0, (1, 2)), (3.0, (1,)), (3.0, ())],
    ids=["smaller than any", "larger than any", "one rate", "none"],
)
def test_nothing_is_extrapolated(kl, rates):
    baselines = {rate: [run(0, 0.4, 8 ** (rate - 1))] for rate in rates}
    assert over_equal_steps([run(0, 0.5, kl)], baselines) is None
    assert over_equal_steps([run(0, 0.5, 3.0), run(7, 0.5, 3.0)], {1: [run(0, 0.4, 1)], 2: [run(0, 0.4, 8)]}) is None
