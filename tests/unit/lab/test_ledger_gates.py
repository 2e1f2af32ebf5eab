"""The ledger's gates: numbers against loops over pairs, and differences of the lab's runs."""

import ledger_gates
import numpy as np
import pytest


def chance(above, below):
    """The AUC by its definition."""
    return float(np.mean([[(a > b) + 0.5 * (a == b) for b in below] for a in above], dtype=np.float64))


@pytest.mark.parametrize("seed", range(3))
def test_the_auc_is_the_share_of_pairs(seed):
    rng = np.random.default_rng(seed)
    above, below = rng.integers(0, 6, 40).astype(float), rng.integers(0, 5, 30).astype(float)
    assert ledger_gates.auc(above, below) == pytest.approx(chance(above, below), abs=1e-12)


def test_the_surprisal_gate_pools_problems_and_counts_slips():
    found = {"errors": [[2.0, 1.0], [], [3.0]], "twins": [[2.0], [1.5, 0.5], []], "slips": 1}
    found |= {"correct": 5, "lucky": 1, "tokens": 90, "rollouts": 9}
    gate = ledger_gates.surprisal_gate(found | {"errors": found["errors"] * 4, "twins": found["twins"] * 4}, draws=50)
    assert gate["auc"] == pytest.approx(chance([2.0, 1.0, 3.0], [2.0, 1.5, 0.5])) and gate["problems"] == 12
    assert gate["low"] <= gate["auc"] <= gate["high"]
    assert (gate["errors"], gate["twins"], gate["slips_of_errors"]) == (12, 12, pytest.approx(1 / 12))
    assert gate["accuracy"] == pytest.approx(5 / 9) and gate["response_tokens"] == 10
