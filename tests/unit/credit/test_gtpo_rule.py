"""`gtpo` against loops over positions and rollouts, in float64 from the paper's formulas; U is float32's roundoff.

The rule also computes in float64, and rounds the advantages to float32. So they differ by U |A| and by float64's noise,
for which 1e-9 is ample.
"""

import math

import numpy as np
import pytest
import torch

from openrlhf_shear.config.rules import GtpoConfig
from openrlhf_shear.credit import RolloutGroup
from openrlhf_shear.credit.rules.gtpo import GtpoRule

U = 2**-24
NAN = float("nan")
SEEDS = range(8)


def group(entropies, correct) -> RolloutGroup:
    rewards = tuple(NAN if outcome is None else float(outcome) for outcome in correct)
    tensors = tuple(torch.tensor(values, dtype=torch.float32) for values in entropies)
    return RolloutGroup(0, rewards, tuple(correct), tuple(map(len, entropies)), entropies=tensors)


def random_group(seed):
    """4 to 9 rollouts of 0 to 30 tokens, of both outcomes; some without a reward; a fifth of the entropies are 0."""
    rng = np.random.default_rng(seed)
    lengths = [3, 5, *(int(rng.choice([0, 1, rng.integers(2, 31)])) for _ in range(rng.integers(2, 8)))]
    entropies = [(rng.exponential(size=n) * (rng.random(n) > 0.2)).astype(np.float32).tolist() for n in lengths]
    outcomes = [[True, False, None][rng.choice(3, p=[0.4, 0.4, 0.2])] for _ in lengths[2:]]
    return entropies, [True, False, *outcomes]


def oracle_rewards(entropies, correct, alpha1=1.0, alpha2=0.1) -> list[list[float]]:
    """Token by token; rollouts without a reward get None."""
    rewards = []
    for i, outcome in enumerate(correct):
        row = []
        for t in range(len(entropies[i])):
            alive = [k for k in range(len(correct)) if correct[k] is outcome and len(entropies[k]) > t]
            if outcome:
                share = (entropies[i][t] + 1e-8) / sum(entropies[k][t] + 1e-8 for k in alive)
                row.append(alpha1 * 1 + alpha2 * share * len(alive))
            elif outcome is False:
                share = 1 / (entropies[i][t] + 1e-8) / sum(1 / (entropies[k][t] + 1e-8) for k in alive)
                row.append(alpha1 * -1 + alpha2 * share * len(alive) * -1)
        rewards.append(row if outcome is not None else None)
    return rewards


def oracle(entropies, correct, alpha1=1.0, alpha2=0.1, apart=False) -> list[np.ndarray]:
    rewards = oracle_rewards(entropies, correct, alpha1, alpha2)
    advantages = [np.zeros(len(values)) for values in entropies]
    tokens = {side: [r for i, row in enumerate(rewards) if correct[i] is side for r in row] for side in (True, False)}
    if not tokens[True] or not tokens[False]:
        return advantages
    for i, row in enumerate(rewards):
        if row:
            all_of = tokens[correct[i]] if apart else tokens[True] + tokens[False]
            mean = math.fsum(all_of) / len(all_of)
            variance = math.fsum((r - mean) ** 2 for r in all_of) / max(len(all_of) - 1, 1)
            scale = math.sqrt(variance) + 1e-9 if len(all_of) > 1 else 1.0
            advantages[i] = np.array([(r - mean) / scale for r in row])
    return advantages


def made(entropies, correct, **knobs) -> list[np.ndarray]:
    credit = GtpoRule(GtpoConfig(**knobs)).credit(group(entropies, correct))
    assert all(values.dtype == torch.float32 for values in credit.advantages)
    return [values.double().numpy() for values in credit.advantages]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("knobs", [{}, {"alpha1": 0.3, "alpha2": 0.7}, {"alpha2": 2.0, "normalize": "apart"}])
def test_advantages_match_the_oracle(knobs, seed):
    entropies, correct = random_group(seed)
    apart = knobs.get("normalize") == "apart"
    expected = oracle(entropies, correct, knobs.get("alpha1", 1.0), knobs.get("alpha2", 0.1), apart)
    for found, wanted in zip(made(entropies, correct, **knobs), expected, strict=True):
        assert len(found) == len(wanted) and np.all(np.abs(found - wanted) <= U * np.abs(wanted) + 1e-9)


def test_a_worked_example():
    """Two correct rollouts share 2 alpha2 at position 0 as 3 : 1, two incorrect ones as 1/1 : 1/4 = 4 : 1."""
    rule = GtpoRule(GtpoConfig(alpha2=0.5))
    right = rule.rewards([torch.tensor([3.0, 2.0]), torch.tensor([1.0])])
    assert [row.tolist() for row in right] == [[pytest.approx(1.75), 1.5], [pytest.approx(1.25)]]
    wrong = rule.rewards([torch.tensor([1.0]), torch.tensor([4.0])], inverse=True)
    assert [row.tolist() for row in wrong] == [[pytest.approx(1.8)], [pytest.approx(1.2)]]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("inverse", [False, True])
def test_a_position_hands_out_as_much_as_it_has_rollouts(inverse, seed):
    """Proposition 2.2, for all entropies including zeros."""
    entropies, _ = random_group(seed)
    rewards = GtpoRule().rewards([torch.tensor(values) for values in entropies if values], inverse)
    for t in range(max(map(len, rewards))):
        alive = [row[t].item() for row in rewards if len(row) > t]
        assert sum(alive) == pytest.approx(1.1 * len(alive), abs=1e-12)


@pytest.mark.parametrize("correct", [[True] * 3, [False] * 3, [True, None, True], [None] * 3])
@pytest.mark.parametrize("normalize", ["together", "apart"])
def test_groups_without_both_outcomes_learn_nothing(correct, normalize):
    entropies = [[0.5, 0.2], [0.1], [0.7, 0.9, 0.3]]
    assert not any(values.any() for values in made(entropies, correct, normalize=normalize))
    assert GtpoRule().credit(group(entropies, correct)).metrics == {"mixed_groups": 0.0}
    assert not made([[0.5, 0.1]], [True])[0].any(), "a group of one"
    assert not made([[0.5, 0.1], []], [True, False])[0].any(), "the only incorrect response is empty"


def test_rollouts_without_a_reward_count_nowhere():
    entropies, correct = [[0.5, 0.2], [0.1, 0.4], [9.0, 9.0, 9.0]], [True, False, None]
    with_it, without = made(entropies, correct), made(entropies[:2], correct[:2])
    assert all(np.array_equal(a, b) for a, b in zip(with_it, without, strict=False)) and not with_it[2].any()
    assert GtpoRule().credit(group(entropies, correct)).metrics == {"mixed_groups": 1.0}


@pytest.mark.parametrize("entropies", [[[0.4]] * 5, [[0.1], [0.7], [0.0], [0.3], [2.0]]])
def test_one_token_responses_without_a_share_are_grpo(entropies):
    correct = [True, False, False, True, False]
    rewards = np.array(correct, np.float64)
    grpo = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-9)
    # rewards of -1 and 1 have twice the deviation, beside which 1e-9 counts half
    assert np.concatenate(made(entropies, correct, alpha2=0.0)) == pytest.approx(grpo, abs=2e-9 + 2 * U)
    equal = np.concatenate(made([[0.4]] * 5, correct))
    assert equal == pytest.approx(grpo, abs=2e-9 + 2 * U), "equal entropies share equally"


def test_entropy_gets_praise_and_certainty_gets_blame():
    entropies, correct = [[0.2, 0.9], [0.8, 0.1], [0.2, 0.9], [0.8, 0.1]], [True, True, False, False]
    unsure_right, sure_right, sure_wrong, unsure_wrong = [], [], [], []
    for normalize in ("together", "apart"):
        a, b, c, d = made(entropies, correct, normalize=normalize)
        assert a[0] < b[0] and a[1] > b[1], "more entropy, more praise"
        assert c[0] < d[0] and c[1] > d[1], "less entropy, more blame"
        unsure_right.append(a[1])
        sure_right.append(a[0])
        sure_wrong.append(c[0])
        unsure_wrong.append(c[1])
    assert sure_right[0] > 0 > unsure_wrong[0], "together, outcomes decide the signs"
    assert sure_right[1] < 0 < unsure_wrong[1], "apart, they do not"
    assert min(unsure_right) > 0 > max(sure_wrong)


@pytest.mark.parametrize("seed", SEEDS)
def test_apart_each_outcome_has_mean_0(seed):
    entropies, correct = random_group(seed)
    advantages = made(entropies, correct, normalize="apart", alpha2=1.0)
    for side in (True, False):
        rows = [row for row, outcome in zip(advantages, correct, strict=True) if outcome is side and len(row)]
        tokens = np.concatenate(rows)
        assert abs(tokens.mean()) <= U * (1 + np.abs(tokens).max())
        assert tokens.std(ddof=1) == pytest.approx(1.0 if len(rows) > 1 else 0.0, abs=1e-6), "alone, nothing is shared"


def test_signs_are_those_of_the_outcome_up_to_the_documented_share():
    """At 95% correct tokens all keep their signs; beyond, correct tokens with the smallest share lose theirs."""
    unequal = [[5.0] if i % 2 else [1e-6] for i in range(99)]
    for wrong, kept in ((5, True), (4, False)):
        values = np.concatenate(
            made([*unequal[: 100 - wrong], *[[1.0]] * wrong], [True] * (100 - wrong) + [False] * wrong)
        )
        assert np.all(values[100 - wrong :] < 0)
        assert bool(np.all(values[: 100 - wrong] > 0)) is kept


def test_zero_and_slightly_negative_entropies_share_equally():
    """A difference of logits' sums, as OpenRLHF's entropies are, may be below 0 by rounding."""
    zeros = made([[0.0, 0.0], [0.0], [0.0, 0.5], [0.0, 0.0]], [True, True, False, False])
    below = made([[-1e-6, 0.0], [0.0], [0.0, 0.5], [-1e-7, 0.0]], [True, True, False, False])
    assert all(np.array_equal(a, b) and np.isfinite(a).all() for a, b in zip(zeros, below, strict=True))
    assert zeros[0][0] == zeros[1][0] and zeros[2][0] == zeros[3][0]
    assert zeros[3][1] < zeros[2][1] < 0, "the sure token takes all of the blame"
