"""The accuracy contract: every span's distance is within 0.05 eps of a float64 oracle, whatever finds it.

The oracle (POT in the log domain, to a marginal error of 1e-9) solves every opposing pair, on costs that are computed
here in float64. The contract allows 0.05 eps; at most 0.0009 eps was measured on these cases, and 0.01 eps is asked.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import entropic
from safetensors.torch import load_file

from openrlhf_shear.config import SearchConfig, ShearConfig
from openrlhf_shear.credit import shear_weights
from openrlhf_shear.kernels.numba_sinkhorn import NumbaSinkhorn
from openrlhf_shear.ot import SinkhornPairs, Spans
from openrlhf_shear.ot.tiles import tiles

SAMPLE = Path(__file__).parents[1] / "data" / "smollm2_states.safetensors"
ACCURACY = 0.01  # of eps
WINDOW, STRIDE = 40, 30


def group(kind: str) -> list[torch.Tensor]:
    """Four rollouts; "real": SmolLM2-135M-Instruct's states of one prompt (benchmarks/hidden_states.py)."""
    if kind == "real":
        states = load_file(SAMPLE)
        return [states[f"rollout_{i}"][: 80 + 7 * i] for i in range(4)]
    generator = torch.Generator().manual_seed(0)
    rollouts = [torch.randn(70 + 7 * i, 32, generator=generator) for i in range(4)]
    if kind == "clustered":
        centres = torch.randn(4, 32, generator=generator)
        rollouts = [0.1 * h + centres[torch.randint(4, (len(h),), generator=generator)] for h in rollouts]
    if kind == "prefix":
        for h in rollouts[1:]:
            h[:35] = rollouts[0][:35]
    return rollouts


@pytest.fixture(scope="module", params=["random", "clustered", "prefix", "real"])
def case(request):
    """A group, its scale nbar, and the float64 cost of every opposing pair of spans."""
    rollouts = group(request.param)
    numbers = [h.double().numpy() for h in rollouts]
    nbar = np.mean([math.sqrt((token**2).sum()) for h in numbers for token in h])
    spans = [[h[s : s + WINDOW] / nbar for s in starts(len(h))] for h in numbers]
    costs = {
        (i, k, j, m): np.sqrt(((x[:, None] - y) ** 2).sum(-1))
        for i in (0, 2)
        for j in (1, 3)
        for k, x in enumerate(spans[i])
        for m, y in enumerate(spans[j])
    }
    return rollouts, costs


def starts(length: int) -> list[int]:
    return list(range(0, max(length - WINDOW, 0) + STRIDE, STRIDE))


@pytest.mark.parametrize("epsilon", [0.05, 0.01])
def test_every_span_is_within_the_contract(case, epsilon):
    rollouts, costs = case
    value = {pair: entropic(cost, epsilon)[0] for pair, cost in costs.items()}
    for backend in ("torch", "numba"):
        result = shear_weights(
            rollouts,
            [True, False, True, False],
            ShearConfig(window=WINDOW, stride=STRIDE, epsilon_rel=epsilon),
            SearchConfig(backend=backend),
        )
        assert result.converged
        for i, distances in enumerate(result.span_distances):
            expected = [
                min(v for (c, k, w, m), v in value.items() if (i, span) in ((c, k), (w, m)))
                for span in range(len(distances))
            ]
            assert distances.tolist() == pytest.approx(expected, abs=ACCURACY * epsilon)


def test_the_paper_s_spans_on_real_hidden_states():
    """100 x 100 tokens; three pairs, since the oracle takes its time."""
    epsilon = 0.015
    states = load_file(SAMPLE)
    h = [states[f"rollout_{i}"] for i in range(2)]
    nbar = torch.cat(h).double().norm(dim=1).mean().item()
    tile = next(tiles(*(Spans.pack([x], 100, 25, nbar) for x in h), 2**28))
    pairs = torch.tensor([[0, 0], [1, 2], [3, 1]])
    expected = []
    for k, m in pairs.tolist():
        x, y = (x[25 * s : 25 * s + 100].double().numpy() / nbar for x, s in zip(h, (k, m), strict=True))
        expected.append(entropic(np.sqrt(((x[:, None] - y) ** 2).sum(-1)), epsilon)[0])
    for solver in (SinkhornPairs, NumbaSinkhorn):
        result = solver(tile, epsilon).solve(pairs)
        assert result.converged.all()
        assert result.value.tolist() == pytest.approx(expected, abs=ACCURACY * epsilon)
