"""Every rule that acts on groups against its paper's formula: slow loops over tokens and rollouts, in float64.

`shear`, `text` and the rules in the update (`test_update_rules.py`) have other files. `NOISE` is above the largest
difference over these seeds, most of it float32's rounding of advantages of some units.
"""

import math
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from cases import table
from rule_groups import credit_of, full_group, grpo, probabilities, random_group, rows_of, value_of
from scipy.stats import fisher_exact

from openrlhf_shear.config.names import parse_rule
from openrlhf_shear.config.shear import ErrorOddsConfig
from openrlhf_shear.credit import RolloutGroup, shear_weights
from openrlhf_shear.credit.rule import StepScores

SEEDS = range(6)
NOISE = {"pure": 1e-4, "ktae": 2e-5, "error_odds": 1e-5, "spro": 5e-6, "rlsd": 5e-6, "sdpo": 5e-6, "delta": 5e-6}


def rows(tensors) -> list[list[float]]:
    return [row.tolist() for row in tensors]


def sides(group) -> tuple[list[int], list[int]]:
    right, wrong = ([i for i, outcome in enumerate(group.correct) if outcome is side] for side in (True, False))
    return right, wrong


def rated(group) -> list[int]:
    return [i for i, outcome in enumerate(group.correct) if outcome is not None]


def uniform(group, **knobs):
    return [[1.0] * n for n in group.lengths]


def entropy_mask(group, fraction=0.2):
    """A token is kept if fewer than k of the rated tokens have a higher entropy."""
    entropies = rows(group.entropies)
    tokens = [h for i in rated(group) for h in entropies[i]]
    k = math.ceil(Fraction(str(fraction)) * len(tokens))
    return [[float(sum(other > h for other in tokens) < k) for h in row] for row in entropies]


def gtpo(group, alpha1=1.0, alpha2=0.1, normalize="together"):
    """Token by token; rollouts without a reward get 0."""
    entropies, rewards = rows(group.entropies), {True: {}, False: {}}
    for i in rated(group):
        outcome = group.correct[i]
        for t, h in enumerate(entropies[i]):
            peers = [
                entropies[k][t] + 1e-8
                for k in range(len(entropies))
                if group.correct[k] is outcome and group.lengths[k] > t
            ]
            share = (h + 1e-8) / sum(peers) if outcome else 1 / (h + 1e-8) / sum(1 / peer for peer in peers)
            rewards[outcome][i, t] = (1 if outcome else -1) * (alpha1 + alpha2 * share * len(peers))
    advantages = [[0.0] * n for n in group.lengths]
    everything = [*rewards[True].values(), *rewards[False].values()]
    for side in rewards.values():
        pool = list(side.values()) if normalize == "apart" else everything
        mean = math.fsum(pool) / len(pool)
        scale = np.std(pool, ddof=1) + 1e-9 if len(pool) > 1 else 1.0
        for (i, t), reward in side.items():
            advantages[i][t] = (reward - mean) / scale
    return advantages


def ktae(group, frequency=1.0, scale=1.0):
    ids = rows(group.token_ids)
    texts = [[ids[i] for i in side] for side in sides(group)]
    lengths = [sum(map(len, side)) for side in texts]

    def value(token):
        holders = [sum(token in text for text in side) for side in texts]
        table = [holders, [len(side) - held for side, held in zip(texts, holders, strict=True)]]
        p, total = fisher_exact(table, alternative="two-sided").pvalue, sum(map(len, texts))
        association = 0.0 if p > 1 - 1e-9 else math.exp(-2 * p)
        information = sum(  # mutual, from the joint distribution
            row[k] / total * math.log2(row[k] * total / (sum(row) * len(texts[k])))
            for row in table
            for k in (0, 1)
            if row[k]
        )
        shares = [sum(text.count(token) for text in side) / n for side, n in zip(texts, lengths, strict=True)]
        f, g = (3 * tf / (tf + 1 + 2 * n / sum(lengths)) for tf, n in zip(shares, lengths, strict=True))
        a, b = (math.asin(math.sqrt(held / len(side))) for held, side in zip(holders, texts, strict=True))
        direction = a - b + frequency * (f / (g + 1e-5) - g / (f + 1e-5))
        strength = (association + information) / 2
        return scale * math.tanh(strength * direction / 2)

    return [
        [0.0 if group.correct[i] is None else outcome + value(token) for token in ids[i]]
        for i, outcome in enumerate(grpo(group.rewards))
    ]


def likelihoods(group):
    return [[math.exp(p) for p in row] for row in rows(group.log_probs)]


def ar(group, alpha=0.1):
    return [[1 - alpha * (1 - p) for p in row] for row in likelihoods(group)]


def stapo(group, probability=0.002, fraction=0.2):
    """Weights of praise: an unlikely token is silenced if enough of the rated tokens have a higher entropy."""
    high = entropy_mask(group, fraction)
    pairs = [zip(*pair, strict=True) for pair in zip(likelihoods(group), high, strict=True)]
    return [[0.0 if p < probability and not kept else 1.0 for p, kept in row] for row in pairs]


def a3po(group, share=0.2, praise=2.0, blame=2.0, highest=True):
    """Weights of blame, else of praise: a token is among the k most likely of its rollout, else the least likely."""
    made, factor = [], blame if highest else praise
    for row in likelihoods(group):
        k = max(1, math.floor(Fraction(str(share)) * len(row)))
        places = sorted(((p, t) for t, p in enumerate(row)), reverse=highest)[:k]
        made.append([factor if (p, t) in places else 1.0 for t, p in enumerate(row)])
    return made


def w_reinforce(group, positive=0.1, negative=1.0):
    outcomes = [0.0 if right is None else positive if right else -negative for right in group.correct]
    return [[outcome] * n for outcome, n in zip(outcomes, group.lengths, strict=True)]


def vppo(group, alpha=0.5, threshold=0.8, shorten=0.1, relu=False):
    """Step by step: tokens are good until a step is wrong."""
    rewards = {}
    for i in rated(group):
        n, good, start = group.lengths[i], None, 0
        for end, score in zip(*rows((group.prm_scores[i].ends, group.prm_scores[i].scores)), strict=True):
            if score < threshold:
                good = start - math.floor(Fraction(str(shorten)) * n)
                break
            start = end + 1
        rewards[i] = [1.0 if group.correct[i] else alpha if good and t < good else 0.0 for t in range(n)]
    means = [math.fsum(row) / len(row) if row else float(group.correct[i]) for i, row in rewards.items()]
    advantages = [[0.0] * n for n in group.lengths]
    for i, row in rewards.items():
        made = [value - math.fsum(means) / len(means) for value in row]
        prefix = [not group.correct[i] and value == alpha for value in row]
        advantages[i] = [max(a, 0.0) if relu and own else a for a, own in zip(made, prefix, strict=True)]
    return advantages


def filled(scores, length):
    """Each token's step is the first that ends at or behind it, or the last one."""
    ends, values = scores.ends.tolist(), scores.scores.tolist()
    return [values[min(sum(end < t for end in ends), len(ends) - 1)] for t in range(length)] if values else None


def prm_reshape(group, praise=False):
    made = [filled(scores, n) for scores, n in zip(group.prm_scores, group.lengths, strict=True)]
    pairs = zip(made, group.lengths, strict=True)
    return [[1.0] * n if p is None else [value if praise else 1 - value for value in p] for p, n in pairs]


def pure(group, temperature=0.1, verifiable_coef=1.0, width=None):
    width = width or max(group.lengths)
    returns = []
    for scores, reward, length in zip(group.prm_scores, group.rewards, group.lengths, strict=True):
        r, tokens = [2 * score - 1 for score in scores.scores.tolist()], [0.0] * length
        for k, end in enumerate(scores.ends.tolist()):
            tokens[end] += r[k] / math.fsum(math.exp((r[k] - other) / temperature) for other in r)
        if length:
            tokens[-1] += verifiable_coef * reward
        returns.append([math.fsum(tokens[t:]) for t in range(length)])
    advantages = [[0.0] * n for n in group.lengths]
    for i in rated(group):
        others = [math.fsum(returns[j]) / width for j in rated(group) if j != i]
        baseline = math.fsum(others) / len(others) if others else 0.0
        advantages[i] = [value - baseline for value in returns[i]]
    return advantages


def rise(weights, t, reach):
    """The mean from token t on less the mean before it, of `reach` tokens each, at least 0; 0 at token 0."""
    ahead, behind = weights[t : t + reach], weights[max(t - reach, 0) : t]
    return max(sum(ahead) / len(ahead) - sum(behind) / len(behind), 0) if t else 0.0


def error_odds(group, surprisal=2.0, entropy=4.0, rise_=10.0, reach=8, **spans):
    omega = shear_weights(group.hidden_states, group.correct, ErrorOddsConfig(**spans).shear).weights
    made = [[1.0] * n for n in group.lengths]
    for i in sides(group)[1]:
        weights, pairs = (
            omega[i].double().tolist(),
            zip(rows(group.log_probs)[i], rows(group.entropies)[i], strict=True),
        )
        odds = [
            max(-p, 1e-3) ** surprisal * math.exp(rise_ * rise(weights, t, reach) - entropy * h)
            for t, (p, h) in enumerate(pairs)
        ]
        made[i] = [value / sum(odds) for value in odds]
    return made


def realized(group, i, t):
    """The energy of tokens up to t."""
    energy = 0.0
    for s in range(t + 1):
        drawn = int(group.token_ids[i][s])
        energy += math.fsum((float(v == drawn) - p) ** 2 for v, p in enumerate(probabilities(group, i, s)))
    return energy


def otb(group, tail="zero"):
    advantages = [[0.0] * n for n in group.lengths]
    for i in rated(group):
        for t in range(group.lengths[i]):
            alive = {j: realized(group, j, t) for j in rated(group) if group.lengths[j] > t}
            baseline = math.fsum(w * group.rewards[j] for j, w in alive.items()) / math.fsum(alive.values())
            advantages[i][t] = group.rewards[i] - (0.0 if len(alive) == 1 and tail == "zero" else baseline)
    return advantages


def delta(group, low=0.8, high=1.2, rounds=1):
    """The authors' algorithm, with squared distances as they have them."""

    def proxy(i, t):
        return (1 - probabilities(group, i, t)[int(group.token_ids[i][t])]) * group.source_states[i][t].double().numpy()

    known = [group.rewards[i] for i in rated(group)]
    mean = math.fsum(known) / len(known)
    tokens = {
        s: [(i, t) for i, n in enumerate(group.lengths) for t in range(n) if s * (group.rewards[i] - mean) > 0]
        for s in (1, -1)
    }
    v = {s: np.array([proxy(*each) for each in tokens[s]]) for s in tokens}
    size = {s: np.array([abs(group.rewards[i] - mean) for i, _ in tokens[s]]) for s in tokens}
    mu = {s: size[s] @ v[s] / size[s].sum() for s in tokens}

    def margins():
        return {s: ((v[s] - mu[-s]) ** 2).sum(1) - ((v[s] - mu[s]) ** 2).sum(1) for s in v}

    def deviations(of):
        return {s: math.sqrt(max(values.var(), 1e-8)) for s, values in of.items()}

    now = margins()
    gamma = deviations(now)
    for _ in range(rounds):
        near = {s: size[s] / (1 + np.exp(-now[s] / gamma[s])) for s in now}
        gamma, mu = deviations(now), {s: near[s] @ v[s] / near[s].sum() for s in v}
        now = margins()
    weights = [[1.0] * n for n in group.lengths]
    made = {s: low + (high - low) / (1 + np.exp(-now[s] / gamma[s])) for s in now}
    scale = np.concatenate(list(made.values())).mean()
    for s, places in tokens.items():
        for (i, t), value in zip(places, made[s], strict=True):
            weights[i][t] = value / scale
    return weights


def nthr_scores(group):
    """s of each token of a rated rollout, pair by pair, and the smallest mean of a correct rollout."""
    right, wrong = sides(group)
    entries = sorted({int(token) for i in rated(group) for token in group.token_ids[i]})
    places = [(i, t) for i in (*right, *wrong) for t in range(group.lengths[i])]
    errors = {
        (i, t): np.array(
            [float(v == int(group.token_ids[i][t])) - p for v, p in enumerate(probabilities(group, i, t))]
        )[entries]
        for i, t in places
    }
    states = {(i, t): group.source_states[i][t].double().numpy() for i, t in places}
    scores: dict[int, list[float]] = {i: [] for i in (*right, *wrong)}
    for place in places:
        pairs = (errors[k] @ errors[place] * (states[k] @ states[place]) for k in places if k[0] in right)
        scores[place[0]].append(math.fsum(pairs))
    return scores, min(math.fsum(scores[i]) / len(scores[i]) for i in right if scores[i])


def nthr(group, beta=1.0, eta=None):
    """Weights of blame. No seed has a token whose score is as near to tau as rounding."""
    (right, wrong), (scores, least) = sides(group), nthr_scores(group)
    eta = 2 * abs(0.5 - len(right) / (len(right) + len(wrong))) if eta is None else eta
    largest = max(abs(s) for row in scores.values() for s in row)
    weights = [[1.0] * n for n in group.lengths]
    for i in wrong:
        for t, s in enumerate(scores[i]):
            assert abs(s - beta * least) > 2e-6 * largest, "rounding decides"
            weights[i][t] = eta if s > beta * least else 1.0
    return weights


def spro(group, beta=0.05):
    policy, reference = rows(group.log_probs), rows(group.ref_log_probs)
    sums = [
        [beta * math.fsum(a - b for a, b in zip(p[: t + 1], q, strict=False)) for t in range(len(p))]
        for p, q in zip(policy, reference, strict=True)
    ]
    advantages = [[0.0] * n for n in group.lengths]
    for i in rated(group):
        for t in range(group.lengths[i]):
            peers = [sums[k][t] for k in rated(group) if t < group.lengths[k]]
            advantages[i][t] = grpo(group.rewards)[i] + sums[i][t] - math.fsum(peers) / len(peers)
    return advantages


def gains(group):
    """The rise of each log-prob by a hint, 0 for a rollout beside which no other is correct."""
    right = sides(group)[0]
    pairs = zip(rows(group.hint_log_probs), rows(group.log_probs), strict=True)
    return [[a - b if set(right) - {i} else 0.0 for a, b in zip(*pair, strict=True)] for i, pair in enumerate(pairs)]


def rlsd(group, strength=0.5, clip=0.2, sign=-1):
    return [
        [1 - strength + strength * min(max(math.exp(sign * gain), 1 - clip), 1 + clip) for gain in row]
        for row in gains(group)
    ]


def sdpo(group, share=1.0):
    made = zip(gains(group), grpo(group.rewards), group.correct, strict=True)
    return [[0.0 if right is None else (1 - share) * a + share * gain for gain in row] for row, a, right in made]


def vine(group, every=32, samples=9):
    advantages = []
    for text, reward, right in zip(rows(group.token_ids), group.rewards, group.correct, strict=True):
        starts = [t - t % every for t in range(len(text))]
        ends = [value_of(text[: s + every], samples) if s + every < len(text) else reward for s in starts]
        values = [end - value_of(text[:s], samples) for s, end in zip(starts, ends, strict=True)]
        advantages.append([0.0 if right is None else value for value in values])
    return advantages


ORACLES = {  # advantages, else weights of blame
    each.__name__: each for each in (uniform, entropy_mask, gtpo, ktae, prm_reshape, pure, error_odds, otb, delta, nthr)
}
ORACLES |= {each.__name__: each for each in (spro, rlsd, sdpo, vine, ar, a3po, w_reinforce, vppo)} | {"stapo": uniform}
PRAISE = {"prm_reshape": partial(prm_reshape, praise=True), "nthr": uniform, "rlsd": partial(rlsd, sign=1)}
PRAISE |= {"a3po": partial(a3po, highest=False), "stapo": stapo}
RULES = table("credit", "RULES")


def oracle(rule: str, group: RolloutGroup, oracles=ORACLES) -> list[list[float]]:
    name = parse_rule(rule)
    knobs = {"rise_" if knob == "rise" else knob: value for knob, value in name.arguments().items()}
    return oracles[name.rule](group, **knobs)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_its_formula(rule, seed):
    group, noise = random_group(seed), NOISE.get(rule.partition("/")[0], 2e-6)
    for found, expected in zip(rows_of(rule, group), oracle(rule, group), strict=True):
        assert found == pytest.approx(expected, abs=noise)


@pytest.mark.parametrize("rule", ["pure", "otb", "delta", "ktae", "spro", "sdpo/share=0.3", "vine"])
def test_a_rule_of_graded_rewards_is_its_formula(rule):
    for group in map(random_group, SEEDS):
        graded = replace(group, rewards=tuple(reward + 0.1 * i for i, reward in enumerate(group.rewards)))
        for found, expected in zip(rows_of(rule, graded), oracle(rule, graded), strict=True):
            assert found == pytest.approx(expected, abs=NOISE.get(rule.partition("/")[0], 2e-6))


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.startswith("vppo")])
def test_vppo_of_many_steps_is_its_formula(rule):
    """Random groups have few incorrect rollouts whose first step is right."""
    values = []
    for seed in SEEDS:
        rng, group = np.random.default_rng(seed), full_group([30, 41, 20, 33, 0], [1, 0, 0, 0, 0], seed)
        ends = [range(2, n, 3) for n in group.lengths]
        scores = tuple(StepScores.of([*each], (rng.random(len(each)) ** 0.3).tolist()) for each in ends)
        group = replace(group, prm_scores=scores)
        found, expected = rows_of(rule, group), oracle(rule, group)
        assert [pytest.approx(row, abs=2e-6) for row in expected] == found
        values += [len({*row}) for row in expected[1:4]]
    assert values.count(2) > 5, "rollouts with a good start"


@pytest.mark.parametrize("rule", [rule for rule in RULES if "/" in rule])
def test_knobs_change_the_formulas_by_more_than_their_noise(rule):
    """Else a rule that leaves a knob out would pass."""
    groups, name = list(map(random_group, SEEDS)), rule.partition("/")[0]
    pairs = [(a, b) for group in groups for oracles in (ORACLES, PRAISE) if name in oracles
             for rows in zip(oracle(rule, group, oracles), oracle(name, group, oracles), strict=True)
             for a, b in zip(*rows, strict=True)]  # fmt: skip
    assert max(abs(a - b) for a, b in pairs) > 100 * NOISE.get(name, 2e-6)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.partition("/")[0] in PRAISE])
def test_praise_has_other_weights(rule):
    for group in map(random_group, SEEDS):
        for found, expected in zip(credit_of(rule, group).weights, oracle(rule, group, PRAISE), strict=True):
            assert found.tolist() == pytest.approx(expected, abs=NOISE.get(rule.partition("/")[0], 2e-6))
