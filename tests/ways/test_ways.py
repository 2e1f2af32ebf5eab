"""The cluster fork, TRL and verl give the same weights for the same rollouts, each where its packages are."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import contract
import pytest
import torch
import upstream_uses
from own_processes import PATIENCE, ROOT
from ways import WAYS, rows

NEEDS = {"cluster fork": "openrlhf", "TRL": "trl", "verl": "verl"}
# Batches, padding and packing round differently; float32, weights up to 1. Measured: at most 4e-6.
TOLERANCE = 2e-5


@pytest.mark.parametrize("way", WAYS)
def test_the_weights_are_the_same_by_every_way(way):
    if not find_spec(NEEDS.get(way, "torch")):
        pytest.skip(f"{NEEDS[way]} is not installed here")
    # A new process: some ways patch packages of others.
    line = [sys.executable, Path(__file__).with_name("ways.py"), way]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=300 * PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    _, named, worst, tokens, _ = done.stdout.splitlines()[-1].split("|")
    assert named.strip() == way and int(tokens) > 1000 and float(worst) < TOLERANCE


@pytest.mark.parametrize("other", upstream_uses.OTHERS)
def test_another_trainer_is_what_the_integration_knows(other):
    if not find_spec(other):
        pytest.skip(f"{other} is not installed here")
    terms = contract.read(contract.CONTRACTS / f"{other}.json")
    lines = contract.changes(terms)
    renew = "read it, then write the contract anew: python tests/unit/upstream_uses.py"
    assert not lines, "\n".join([f"{other} has changed:", *lines, renew])
    assert upstream_uses.uses_of(other) == {name: term.use for name, term in terms.items()}, renew


def test_the_rollouts_show_something():
    """Groups of both outcomes and of one, a rollout with another's tokens in it, weights that differ."""
    given = rows()
    outcomes = [{row["score"] for row in given[at : at + 4]} for at in range(0, len(given), 4)]
    assert {1, 2} >= set(map(len, outcomes)) >= {2}
    assert any(0 in row["mask"] for row in given)
    assert torch.tensor([weight for row in given for weight in row["weights"]]).std() > 0.1
