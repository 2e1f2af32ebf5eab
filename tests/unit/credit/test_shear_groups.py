"""Weights of several groups at once are those of a group alone."""

import pytest
import torch
from clouds import clouds
from test_shear_weights import MIXED, SMALL, group
from together import Together

from openrlhf_shear.config import SearchConfig, ShearConfig
from openrlhf_shear.credit import shear, shear_weights
from openrlhf_shear.credit.shear import shear_groups
from openrlhf_shear.kernels.numba_sinkhorn import NumbaSinkhorn


@pytest.mark.parametrize("knobs", [{}, {"epsilon_spread": 0.1}, {"distance": "mmd"}])
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
    for result, expected in zip(shear_groups(given, config), alone, strict=True):
        for name in ("weights", "span_starts", "nearest_rollouts", "nearest_spans"):
            assert all(map(torch.equal, getattr(result, name), getattr(expected, name)))
        for name in ("mean_norm", "nonfinite", "sides", "epsilon", "cost_spread"):
            assert getattr(result, name) == getattr(expected, name)
    sizes = [size for size, _ in batches]
    assert sizes == ([3] if not knobs else [])  # groups of other epsilons, and other distances, are searched alone


def test_groups_at_once_share_the_memory_of_a_search(monkeypatch):
    batches = []
    monkeypatch.setattr(NumbaSinkhorn, "together", staticmethod(lambda tiles, epsilon: 1 / 0))
    monkeypatch.setattr(shear, "_searched", lambda groups, *_: batches.append(len(groups)) or [None] * len(groups))
    states = clouds("random", (50, 50, 50, 50), d=512)  # 409,600 bytes
    shear_groups([(states, MIXED)] * 5, search=SearchConfig(max_cost_bytes=2**22))
    assert batches == [2, 2, 1]
