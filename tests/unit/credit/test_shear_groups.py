"""Weights of several groups at once, and of a group whose search is shared out, are those of a group alone."""

import pytest
import torch
from clouds import clouds
from test_shear_weights import MIXED, SMALL, group
from together import Together

from openrlhf_shear.config import SearchConfig, ShearConfig
from openrlhf_shear.config.shear import AGGREGATES, DISTANCES
from openrlhf_shear.credit import shear, shear_weights
from openrlhf_shear.credit.shear import search_part, shear_groups
from openrlhf_shear.kernels.numba_sinkhorn import NumbaSinkhorn


@pytest.mark.parametrize("knobs", [{}, {"epsilon_spread": 0.1}, {"aggregate": "mean"}, {"distance": "mmd"}])
def test_groups_at_once_get_the_weights_of_each(knobs, monkeypatch):
    """With a backend that takes several tiles: groups that lack opposing rollouts, states or finite numbers as well."""
    config, batches = ShearConfig(**SMALL, **knobs), []

    class Shared(NumbaSinkhorn):
        @staticmethod
        def together(tiles, epsilon):
            batches.append((len(tiles), epsilon))
            return Together(tiles, lambda tile: NumbaSinkhorn(tile, epsilon))

    broken = group("random", (9, 8))
    broken[1][2] = torch.nan
    third = [2 * states for states in group("clustered", (12, 9, 14))]
    given = [(group(), MIXED), (group("prefix"), [True] * 4), (third, [False, True, None]), (broken, [True, False])]
    given.append((group("prefix", (20, 15, 0, 8)), MIXED))
    alone = [shear_weights(*each, config) for each in given]
    monkeypatch.setattr(shear, "choose_backend", lambda *_: Shared)
    parts = [None, None, [search_part(*given[2], config, SearchConfig(), k, 2) for k in range(2)], None, None]
    for found in (shear_groups(given, config), shear_groups(given, config, parts=parts)):
        for i, (result, expected) in enumerate(zip(found, alone, strict=True)):
            for name in ("weights", "span_starts", "nearest_rollouts", "nearest_spans"):
                if i != 2:  # parts solve other pairs: as in `test_a_search_in_parts_is_the_whole_search`
                    assert all(map(torch.equal, getattr(result, name), getattr(expected, name)))
            for weights, other in zip(result.weights, expected.weights, strict=True):
                torch.testing.assert_close(weights, other, rtol=1e-6, atol=2e-3 * 0.015)
            for name in ("mean_norm", "nonfinite", "sides", "epsilon", "cost_spread"):
                assert getattr(result, name) == getattr(expected, name)
    sizes = [size for size, _ in batches]
    assert sizes == ([3, 2] if not knobs else [])  # groups of other epsilons, and other distances, are searched alone


def test_groups_at_once_share_the_memory_of_a_search(monkeypatch):
    batches = []
    monkeypatch.setattr(NumbaSinkhorn, "together", staticmethod(lambda tiles, epsilon: 1 / 0))
    monkeypatch.setattr(shear, "_searched", lambda groups, *_: batches.append(len(groups)) or [None] * len(groups))
    states = clouds("random", (50, 50, 50, 50), d=512)  # 409,600 bytes
    shear_groups([(states, MIXED)] * 5, search=SearchConfig(max_cost_bytes=2**22))
    assert batches == [2, 2, 1]


@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("distance", DISTANCES)
def test_a_search_in_parts_is_the_whole_search(distance, aggregate):
    rollouts, correct = group(lengths=(30, 17, 24, 29)), [True, False, True, False]
    config = ShearConfig(window=6, stride=3, distance=distance, aggregate=aggregate)
    whole = shear_weights(rollouts, correct, config)
    # Two solves of a problem differ by their tolerance (test_search.SAME, in eps; the plan's cost is of first order).
    # Closed forms give the same numbers; mean and softmin sum them in another order.
    atol = {"sinkhorn": 2e-3 * 0.015, "sinkhorn_transport": 1e-4}.get(distance, 0.0)
    for count in (1, 2, 5, 40):  # more parts than there are spans: some have nothing to do
        parts = [search_part(rollouts, correct, config, SearchConfig(), k, count) for k in range(count)]
        shared = shear_weights(rollouts, correct, config, parts=parts)
        for weights, other in zip(shared.weights, whole.weights, strict=True):
            torch.testing.assert_close(weights, other, rtol=0 if aggregate == "min" else 1e-6, atol=atol)
        if not atol:
            assert all(map(torch.equal, shared.nearest_spans, whole.nearest_spans))
    assert [part is None for part in parts].count(False) == 16


def test_parts_of_a_group_that_nothing_opposes_are_none():
    rollouts = group()
    assert search_part(rollouts, [True] * 4, ShearConfig(), SearchConfig(), 0, 2) is None
    assert all((weight == 1).all() for weight in shear_weights(rollouts, [True] * 4, parts=[None, None]).weights)
