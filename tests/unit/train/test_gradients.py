"""The gradient that reaches the optimizer is that of one float32 pass, whichever way the batch was cut.

`benchmarks/gradient_rows.yaml` has the ways and the limits, `gradients.py` the oracle. Here each way has a row;
`make check-gradients` has them all, and prints their table.
"""

import sys
from pathlib import Path

import gradients
import pytest
from cases import table

NAMES = table("train", "GRADIENTS")
TRIED = [row for row in (*gradients.ROWS, *gradients.UPSTREAM) if row.name in NAMES]


@pytest.mark.parametrize("launch", dict.fromkeys(row.processes for row in TRIED))
def test_every_way_to_cut_a_batch(tmp_path, launch):
    """All rows that share processes; the rows with upstream's code must fail, so the table can tell."""
    rows = [row for row in TRIED if row.processes == launch]
    if rows[0].sees and not (Path(sys.prefix) / "torchvision").is_dir():
        pytest.skip("scripts/setup_tests.sh installs torchvision")
    found = {row["row"]: row for row in gradients.run(rows, tmp_path)}
    for row in rows:
        got = found[row.name]
        if not row.upstream:
            assert got["passed"], got
        elif row.probed:
            assert "GradientLostError: the optimizer step of the policy has the gradient of" in got["error"], got
        else:
            assert got["cosine"] < 0.98 and not got["passed"], got


def test_every_name_is_a_row():
    assert len(TRIED) == len(NAMES)


@pytest.mark.parametrize("bfloat16", [False, True])
def test_the_oracle_sees_a_missing_rollout(bfloat16):
    """The limits are tighter than a batch without one of its sixteen rollouts."""
    rollouts, row = gradients.make_rollouts(), gradients.Row("whole", bfloat16=bfloat16)
    model = gradients.plain_model(gradients.AutoModelForCausalLM)
    weights = {name: value.detach() for name, value in model.named_parameters()}
    whole, part = (
        gradients.flat(gradients.oracle(row, weights, batch).gradient, weights) for batch in (rollouts, rollouts[1:])
    )
    part *= sum(r["actions"].sum() for r in rollouts[1:]) / sum(r["actions"].sum() for r in rollouts)
    cosine = (whole @ part / whole.norm() / part.norm()).item()
    least, most = row.limits
    assert cosine < least or abs(part.norm() / whole.norm() - 1) > most
