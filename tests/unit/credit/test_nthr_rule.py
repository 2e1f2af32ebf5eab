"""`nthr` against the sums over all pairs of tokens, in float64 from the paper's formulas, entry by entry.

Scores were off by at most 2e-7 of the largest over these seeds. A token whose score is as near to tau as `NOISE` could
go either way; no seed has such a token.
"""

import math
from dataclasses import replace

import pytest
import torch
from logit_groups import NAN, VOCABULARY, in_chunks, logit_group, probabilities, random_group

from openrlhf_shear.config.rules import NthrConfig
from openrlhf_shear.credit.apply import token_advantages, weighed
from openrlhf_shear.credit.logits import LMHead
from openrlhf_shear.credit.rules.nthr import NthrRule

NOISE = 2e-6
SEEDS = range(8)


def sides(group):
    return tuple([i for i, outcome in enumerate(group.correct) if outcome is side] for side in (True, False))


def oracle_scores(group, vocabulary) -> tuple[dict[int, list[float]], float]:
    """s of each token of a rated rollout, pair by pair, and the smallest mean of a correct rollout."""
    right, wrong = sides(group)
    rated = [*right, *wrong]
    written = {int(token) for i in rated for token in group.token_ids[i]}
    kept = range(VOCABULARY) if vocabulary == "all" else sorted(written)
    errors, states = {}, {}
    for i in rated:
        for t in range(group.lengths[i]):
            pi, drawn = probabilities(group, i, t), int(group.token_ids[i][t])
            errors[i, t] = [float(v == drawn) - pi[v] for v in kept]
            states[i, t] = group.source_states[i][t].tolist()

    def dot(a, b):
        return math.fsum(x * y for x, y in zip(a, b, strict=True))

    def score(token):
        others = [other for other in errors if other[0] in right]
        return math.fsum(dot(errors[k], errors[token]) * dot(states[k], states[token]) for k in others)

    scores = {i: [score((i, t)) for t in range(group.lengths[i])] for i in rated}
    return scores, min(math.fsum(scores[i]) / len(scores[i]) for i in right if scores[i])


def oracle(group, beta=1.0, eta=None, vocabulary="responses") -> list[list[float]]:
    """Factors of blame."""
    weights = [[1.0] * n for n in group.lengths]
    right, wrong = sides(group)
    if not sum(group.lengths[i] for i in right) or not sum(group.lengths[i] for i in wrong):
        return weights
    scores, least = oracle_scores(group, vocabulary)
    largest = max(abs(s) for row in scores.values() for s in row)
    eta = 2 * abs(0.5 - len(right) / (len(right) + len(wrong))) if eta is None else eta
    for i in wrong:
        for t, s in enumerate(scores[i]):
            assert abs(s - beta * least) > NOISE * largest, "the seed has a token that rounding decides about"
            if s > beta * least:
                weights[i][t] = eta
    return weights


def made(group, **knobs) -> list[list[float]]:
    credit = NthrRule(NthrConfig(**knobs)).credit(group)
    assert all(row.eq(1).all() for row in credit.weights), "praise stays"
    return [row.tolist() for row in credit.negative_weights]


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert a == pytest.approx(b, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("knobs", [{}, {"vocabulary": "all"}, {"beta": 0.0, "eta": 0.25}, {"beta": 0.5, "eta": 0.0}])
def test_factors_of_blame_match_the_oracle(knobs, seed):
    group = random_group(seed)
    assert_same(made(group, **knobs), oracle(group, **knobs))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("vocabulary", ["responses", "all"])
def test_scores_match_the_oracle(vocabulary, seed):
    group = random_group(seed)
    scores, tau = NthrRule(NthrConfig(beta=0.7, vocabulary=vocabulary)).scores(group, *sides(group))
    expected, least = oracle_scores(group, vocabulary)
    largest = max(abs(s) for row in expected.values() for s in row)
    assert scores.keys() == expected.keys() and tau == pytest.approx(0.7 * least, abs=NOISE * largest)
    for i, row in expected.items():
        assert scores[i].tolist() == pytest.approx(row, abs=NOISE * largest)


def test_the_seeds_spare_some_tokens_and_not_others():
    """Else a rule that spares all or none would pass; and the knobs differ."""
    factors = {name: [] for name in ("plain", "all", "beta")}
    for seed in SEEDS:
        group = random_group(seed)
        for name, knobs in (("plain", {}), ("all", {"vocabulary": "all"}), ("beta", {"beta": 0.0})):
            wrong = [i for i, outcome in enumerate(group.correct) if outcome is False]
            rows = oracle(group, eta=0.5, **knobs)
            factors[name] += [w for i in wrong for w in rows[i]]
    assert 0.1 < factors["plain"].count(0.5) / len(factors["plain"]) < 0.9
    assert factors["plain"] != factors["all"] and factors["plain"] != factors["beta"]


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("vocabulary", ["responses", "all"])
def test_chunks_are_the_whole(rows, vocabulary, monkeypatch):
    group, rule = random_group(4), NthrRule(NthrConfig(vocabulary=vocabulary))
    whole, tau = rule.scores(group, *sides(group))
    in_chunks(monkeypatch, rows)
    parts, cut = rule.scores(group, *sides(group))
    assert cut == pytest.approx(tau, rel=1e-5)
    for i, row in whole.items():
        torch.testing.assert_close(parts[i], row, atol=1e-5, rtol=1e-5)


def test_a_worked_example():
    """All pi are 1/2, so g is (1/2, -1/2) or its negative, and <g, g'> is 1/2 or -1/2.

    The correct rollout writes id 0 from state (1, 0): s of it is 1/2, and tau. The incorrect one writes id 0 from (3,
    0): 3/2, spared. Then id 1 from (3, 0): -3/2; id 0 from (0, 1): 0; both blamed.
    """
    states = (torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 0.0], [3.0, 0.0], [0.0, 1.0]]))
    ids = (torch.tensor([0]), torch.tensor([0, 1, 0]))
    group = replace(logit_group([1, 3], [1, 0]), source_states=states, token_ids=ids, lm_head=LMHead(torch.zeros(2, 2)))
    scores, tau = NthrRule().scores(group, [0], [1])
    assert tau == 0.5 and scores[1].tolist() == [1.5, -1.5, 0.0]
    credit = NthrRule().credit(group)
    assert credit.negative_weights[1].tolist() == [0.0, 1.0, 1.0]
    assert credit.metrics == {"spared": pytest.approx(1 / 3), "eta": 0.0}
    assert made(group, beta=4.0) == [[1.0], [1.0] * 3]


@pytest.mark.parametrize(
    ("rewards", "eta"), [([1, 0], 0), ([1, 0, 0, 0], 0.5), ([1, 1, 1, 0], 0.5), ([1, 0, 0], 1 / 3)]
)
def test_eta_is_smallest_at_a_rate_of_one_half_and_counts_rewards_alone(rewards, eta):
    for given in (rewards, [*rewards, NAN]):
        credit = NthrRule().credit(logit_group([4] * len(given), given))
        assert credit.metrics["eta"] == pytest.approx(eta)


@pytest.mark.parametrize("rewards", [[1, 1, 1], [0, 0, 0], [1, NAN, 1], [NAN] * 3])
def test_groups_of_one_outcome_are_grpo(rewards):
    group = logit_group([3, 1, 4], rewards)
    assert made(group) == [[1.0] * 3, [1.0], [1.0] * 4] and NthrRule().credit(group).metrics == {}


def test_empty_and_one_token_responses():
    assert made(logit_group([4], [0])) == [[1.0] * 4], "a group of one"
    assert made(logit_group([4, 0], [0, 1])) == [[1.0] * 4, []], "the only correct response is empty"
    assert made(logit_group([4, 0], [1, 0])) == [[1.0] * 4, []], "the only incorrect response is empty"
    single = logit_group([1, 1, 1, 0], [1, 0, 0, 1], seed=3)
    assert_same(made(single), oracle(single))


def test_rollouts_without_a_reward_count_nowhere():
    with_it = logit_group([4, 3, 7], [1, 0, NAN])
    cut = {name: value[:2] for name, value in vars(with_it).items() if isinstance(value, tuple)}
    assert made(with_it) == [*made(replace(with_it, **cut)), [1.0] * 7]


@pytest.mark.parametrize("seed", SEEDS)
def test_training_keeps_signs_and_praise(seed):
    group = random_group(seed)
    base = {i: torch.full((n,), 0.5 if group.correct[i] else -0.5) for i, n in enumerate(group.lengths)}
    given = token_advantages(NthrRule(), [weighed(NthrRule(), [group], [range(len(base))])[0][0]], base)
    factors = oracle(group)
    for i, credit in given.items():
        assert torch.all(credit.advantages * credit.base >= 0)
        assert credit.advantages.tolist() == pytest.approx(
            [(0.5 if group.correct[i] else -0.5) * w for w in factors[i]]
        )
    praised = {i: row.abs() for i, row in base.items()}
    given = token_advantages(NthrRule(), [weighed(NthrRule(), [group], [range(len(base))])[0][0]], praised)
    assert all(torch.equal(given[i].advantages, praised[i]) for i in praised)
