"""`text`: SHEAR on n-grams, against the float64 oracle of `test_shear_weights.py` on one-hot vectors of all n-grams."""

import numpy as np
import pytest
import torch
from test_shear_weights import ACCURACY, oracle

from examples.rules.text_odds import TextOddsRule
from openrlhf_shear.config import SearchConfig
from openrlhf_shear.config.shear import ErrorOddsConfig, TextConfig
from openrlhf_shear.credit import RolloutGroup
from openrlhf_shear.credit.rules.error_odds import ErrorOddsRule
from openrlhf_shear.credit.rules.text import TextRule, ngram_states

TEXTS = ([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 9, 5, 6], [1, 2, 3, 4, 8, 8, 8, 8], [2, 3, 4, 5])
MIXED = (True, False, True, False)


def group(texts=TEXTS, correct=MIXED, **more) -> RolloutGroup:
    ids, lengths = tuple(map(torch.tensor, texts)), tuple(map(len, texts))
    return RolloutGroup(0, tuple(float(c is True) for c in correct), tuple(correct), lengths, token_ids=ids, **more)


def one_hot(texts, ngram: int) -> list[torch.Tensor]:
    """An axis for every n-gram of the group, which begins with as many tokens as there are."""
    grams = [[tuple(text[max(0, t - ngram + 1) : t + 1]) for t in range(len(text))] for text in texts]
    grams = [[(*gram, t) if t < ngram - 1 else gram for t, gram in enumerate(rollout)] for rollout in grams]
    axes = {gram: i for i, gram in enumerate(sorted({gram for rollout in grams for gram in rollout}, key=str))}
    return [torch.eye(len(axes))[[axes[gram] for gram in rollout]] for rollout in grams]


@pytest.mark.parametrize("ngram", [1, 2, 3, 10])
@pytest.mark.parametrize("epsilon", [0.05, 0.015])
def test_weights_match_the_oracle_on_one_hot_vectors(ngram, epsilon):
    rule = TextRule(TextConfig(window=3, stride=2, epsilon_rel=epsilon, ngram=ngram))
    credit = rule.credit(group())
    weights, _ = oracle(one_hot(TEXTS, ngram), MIXED, window=3, stride=2, epsilon=epsilon)
    assert credit.metrics["mean_norm"] == credit.metrics["opposed"] == 1.0
    for found, expected in zip(credit.weights, weights, strict=True):
        assert found.tolist() == pytest.approx(expected, abs=ACCURACY * epsilon)
    if ngram == 1:  # of the same three words the distance is about epsilon log 3, and of others 1.41
        assert min(w.min() for w in credit.weights) < 1.2 * epsilon


@pytest.mark.parametrize("ngram", [1, 3])
def test_distances_of_opposing_tokens_are_those_of_equal_words(ngram):
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 4, size=n).tolist() for n in (30, 1, 12, 25)]
    short, full = ngram_states(list(map(torch.tensor, texts)), MIXED, ngram), one_hot(texts, ngram)
    for i, j in ((0, 1), (0, 3), (2, 1), (2, 3)):
        assert torch.equal(short[i] @ short[j].T, full[i] @ full[j].T)
    assert ngram == 1 or short[0].shape[1] < full[0].shape[1]


def test_shear_s_knobs_work():
    config = TextConfig(window=4, stride=2, normalize="per_rollout", pool="mean", ngram=2)
    weights, _ = oracle(one_hot(TEXTS, 2), MIXED, 4, 2, normalize="per_rollout", pool="mean")
    rule = TextRule(config)
    rule.search = SearchConfig(backend="torch")
    for found, expected in zip(rule.credit(group()).weights, weights, strict=True):
        assert found.tolist() == pytest.approx(expected, abs=ACCURACY * 0.015)


def test_the_odds_of_the_text_are_those_of_states_that_say_the_same():
    probabilities = {
        name: tuple(scale * torch.rand(len(text), generator=torch.Generator().manual_seed(0)) for text in TEXTS)
        for name, scale in (("log_probs", -3), ("entropies", 2))
    }
    knobs = {"window": 3, "reach": 2, "surprisal": 1.0, "entropy": 0.5}
    text = TextOddsRule(ngram=2, **knobs)
    assert text.needs == {"token_ids", "log_probs", "entropies"}
    credit = text.credit(group(**probabilities))
    expected = ErrorOddsRule(ErrorOddsConfig(**knobs)).credit(
        group(**probabilities, hidden_states=tuple(one_hot(TEXTS, 2)))
    )
    for found, wanted in zip(credit.weights, expected.weights, strict=True):
        assert torch.allclose(found, wanted, atol=1e-4)
    assert credit.metrics["opposed"] == 1.0
    with pytest.raises(ValueError, match=r"text_odds\.ngram must be at least 1"):
        TextOddsRule(ngram=0)
