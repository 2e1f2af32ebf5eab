"""The diagnosis with real engines and a policy on two ranks: engines continue prefixes, states are the policy's."""

import json
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit.shear import shear_weights
from openrlhf_shear.diagnosis.prefixes import read_prefixes
from openrlhf_shear.rollouts.record import read_rollouts
from openrlhf_shear.tasks.arithmetic.problems import write_dataset

from .conftest import ARITHMETIC_REWARD

WINDOW, STRIDE = 16, 12
BF16 = 0.02  # of omega, as between training's modes (test_experience.py)


@pytest.mark.long
def test_rollouts_of_the_built_in_policy_are_completed_and_measured(policy, tokenizer, tmp_path, jobs):
    write_dataset(tmp_path / "problems.jsonl", 3, seed=3)
    out = tmp_path / "out"
    done = jobs.run(
        *(sys.executable, "-m", "openrlhf_shear.cli.diagnose", "--model", policy, "--output", out),
        *("--dataset", tmp_path / "problems.jsonl", "--task", ARITHMETIC_REWARD, "--label-key", "answer"),
        *("--prompt-format", "plain", "--max-new-tokens", "120", "--seed", "1", "--enforce-eager"),
        *("--samples-per-prompt", "6", "--completions", "2", "--window", str(WINDOW), "--stride", str(STRIDE)),
        *("--heatmaps", "1", "--controls", "--resamples", "20", "--actor-ranks", "2", "--zero-stage", "3"),
    )
    assert done.code == 0 and "Aggregate trend" in done.log
    assert json.loads((out / "results.json").read_text())["problems"] > 0

    rollouts, _ = read_rollouts(out / "rollouts.parquet")
    assert len(rollouts) == 18
    by_key = {(r.group, r.sample): r for r in rollouts}
    for line in (out / "completions" / "generations.jsonl").read_text().splitlines():
        row = json.loads(line)
        problem, sample, position = row["question"].split("/")
        rollout = by_key[problem, int(sample)]
        assert row["response"].startswith("".join(rollout.tokens[: int(position)]))
        assert 0 < row["tokens"] <= 120  # a continuation's budget, however long its prefix is
    prefixes, _ = read_prefixes(out / "prefixes.parquet")
    assert set(prefixes["completions"]) == {2} and prefixes["position"].min() == WINDOW

    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.bfloat16).eval()
    mixed = sorted({r.group for r in rollouts if r.weights is not None})
    assert mixed
    for number, name in enumerate(mixed):
        group = [r for r in rollouts if r.group == name]
        prompt = tokenizer(group[0].prompt)["input_ids"]
        states = [_states(model, prompt, r.token_ids) for r in group]
        expected = shear_weights(states, [r.correct for r in group], ShearConfig(window=WINDOW, stride=STRIDE))
        for r, weights, distances in zip(group, expected.weights, expected.span_distances, strict=True):
            assert torch.tensor(r.weights) == pytest.approx(weights, abs=BF16)
            assert torch.tensor(r.span_distances) == pytest.approx(distances, abs=BF16)
            assert r.heatmaps == [] or number == 0
            assert len(r.same_distances) == len(r.permuted_distances) == len(distances) and r.largest_norm >= 1


@torch.no_grad()
def _states(model, prompt: list[int], response: list[int]) -> torch.Tensor:
    """(T, d) float32: what enters the LM head at the response's tokens, from transformers alone, without padding."""
    outputs = model(torch.tensor([prompt + response]), output_hidden_states=True)
    return outputs.hidden_states[-1][0, len(prompt) :].float()
