"""A step whose gradient is not finite is skipped: under every ZeRO stage, of the policy and of the critic."""

import itertools
from dataclasses import asdict

import gradients
import measure
import pytest
import ranks
import torch
from gradients import Row

from openrlhf_shear.tasks.arithmetic.problems import write_dataset

STAGES = (1, 2, 3)


@pytest.fixture(scope="module")
def updates(tmp_path_factory):
    """Row -> what an update of two optimizer steps did, of which one has a gradient that is not finite."""
    folder, rollouts = tmp_path_factory.mktemp("updates"), gradients.make_rollouts()
    rollouts[0]["advantages"] *= 3e38
    rollouts[0]["returns"] *= 1e38
    write_dataset(folder / "train.jsonl", 16, seed=0)
    rows = [
        Row(f"{role}, ZeRO-{stage}", f"--ds.zero_stage {stage}", role=role, bfloat16=True, probed=False)
        for role in ("policy", "critic")
        for stage in STAGES
    ]
    asked = {"rows": [asdict(row) | {"line": gradients.line(row, folder)} for row in rows], "rollouts": rollouts}
    asked |= {"shapes": {}, "environment": {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(measure.free_port())}}
    torch.save(asked, folder / "all.pt")
    ranks.run_ranks("gradient_worker", 1, "all", folder)
    return {row.name: torch.load(folder / "all" / f"{row.name}.pt", weights_only=False) for row in rows}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("role", ["policy", "critic"])
def test_the_step_is_skipped_and_the_other_one_applied(updates, role, stage):
    done = updates[f"{role}, ZeRO-{stage}"]
    assert "error" not in done, done["error"]
    weights = done["weights"]
    changed = [
        any(not torch.equal(before[name], after[name]) for name in before)
        for before, after in itertools.pairwise(weights)
    ]
    assert sorted(changed) == [False, True], "one of the two steps has the rollout"
    assert all(weight.isfinite().all() for step in weights for weight in step.values())
    assert done["status"]["critic_skipped_steps" if role == "critic" else "update/skipped_steps"] == 1
