"""The ledger's gates: numbers against loops over pairs, and differences of the lab's runs."""

import ledger_gates
import numpy as np
import pytest
from lab_cases import write_run

from openrlhf_shear.lab.policy import fingerprint
from openrlhf_shear.lab.runs import jobs
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.variants import parse_rules
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR


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


def test_the_other_gates_are_paired_differences_of_runs(tmp_path):
    settings = LabSettings(task="bookkeeping", steps=2)
    accuracy = {"uniform": 0.5, "oracle_first_wrong": 0.56, ledger_gates.DOSE: 0.53, ledger_gates.SPREAD: 0.54}
    for job in jobs(
        settings, parse_rules(",".join(accuracy)), [900, 901], POLICY_DIR, fingerprint(POLICY_DIR), tmp_path
    ):
        write_run(job, accuracy[job.variant.name] + 0.01 * (job.seed - 900))
    found = ledger_gates.worth_gates(settings, POLICY_DIR, tmp_path)
    assert found.keys() == {*accuracy, "dose", "place"} - {"uniform"}  # one oracle has no run
    assert found["oracle_first_wrong"]["mean"] == pytest.approx(0.06) and found["oracle_first_wrong"]["seeds"] == 2
    assert (found["dose"]["mean"], found["place"]["mean"]) == (pytest.approx(0.03), pytest.approx(0.02))


def test_the_first_steps_of_longer_runs_can_be_judged(tmp_path):
    settings = LabSettings(task="bookkeeping", steps=2)
    accuracy, known = {"uniform": (0.5, 0.9), "oracle_first_wrong": (0.6, 0.7)}, fingerprint(POLICY_DIR)
    for job in jobs(settings, parse_rules(",".join(accuracy)), [900, 901], POLICY_DIR, known, tmp_path):
        write_run(job, *accuracy[job.variant.name])
    for first, over in ((1, 0.1), (None, -0.05)):
        found = ledger_gates.worth_gates(settings, POLICY_DIR, tmp_path, first)
        assert found["oracle_first_wrong"]["mean"] == pytest.approx(over)
