"""The diagnosis with real engines and a policy on two ranks: prefixes are gone on from, states are the policy's."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit.shear import shear_weights
from openrlhf_shear.data.arithmetic import make_problems
from openrlhf_shear.diagnosis.prefixes import read_prefixes
from openrlhf_shear.diagnosis.rollouts import read_rollouts
from openrlhf_shear.diagnosis.run import Diagnosis, diagnose
from openrlhf_shear.evaluation.records import Question
from openrlhf_shear.evaluation.run import Grading, Plan
from openrlhf_shear.evaluation.sampling import Engines, Sampling, prompt_ids

from .conftest import ARITHMETIC_REWARD

WINDOW = 16
BF16 = 0.02  # of omega, as between training's modes (test_experience.py)


def test_rollouts_of_the_built_in_policy_are_completed_and_measured(cluster, policy, tokenizer, tmp_path):
    from openrlhf_shear.fork.diagnosis import Cluster

    questions = [
        Question("arithmetic", str(i), [{"role": "user", "content": problem.prompt}], problem.answer)
        for i, problem in enumerate(make_problems(3, seed=3))
    ]
    sampling = Sampling(temperature=1.0, max_new_tokens=120, seed=1)
    tasks, ks = {"arithmetic": str(ARITHMETIC_REWARD)}, {"arithmetic": 6}
    problems = Plan(str(policy), questions, tasks, ks, sampling, chat=False, token_ids=True)
    config = ShearConfig(window=WINDOW, stride=12)
    machines = Cluster(Engines("cpu", enforce_eager=True), ranks=2, zero_stage=3, micro_batch_size=4)
    asked = Diagnosis(problems, completions=2, config=config, heatmaps=1)
    paths = diagnose(asked, tmp_path, machines, tokenizer, Grading(cores=1, timeout=60))

    rollouts, _ = read_rollouts(paths[0])
    assert len(rollouts) == 18
    by_key = {(r.group, r.sample): r for r in rollouts}
    for line in (tmp_path / "completions" / "generations.jsonl").read_text().splitlines():
        row = json.loads(line)
        problem, sample, position = row["question"].split("/")
        rollout = by_key[problem, int(sample)]
        assert row["response"].startswith("".join(rollout.tokens[: int(position)]))
        assert 0 < row["tokens"] <= 120 - int(position)
    prefixes, _ = read_prefixes(paths[1])
    assert set(prefixes["completions"]) == {2} and prefixes["position"].min() == WINDOW

    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.bfloat16).eval()
    mixed = sorted({r.group for r in rollouts if r.weights is not None})
    assert mixed
    for number, name in enumerate(mixed):
        group = [r for r in rollouts if r.group == name]
        prompt = prompt_ids(tokenizer, questions[int(name)], chat=False)
        states = [_states(model, prompt, r.token_ids) for r in group]
        expected = shear_weights(states, [r.correct for r in group], config)
        for r, weights, distances in zip(group, expected.weights, expected.span_distances, strict=True):
            assert torch.tensor(r.weights) == pytest.approx(weights, abs=BF16)
            assert torch.tensor(r.span_distances) == pytest.approx(distances, abs=BF16)
            assert r.heatmaps == [] or number == 0


@torch.no_grad()
def _states(model, prompt: list[int], response: list[int]) -> torch.Tensor:
    """(T, d) float32: what enters the LM head at the response's tokens, from transformers alone, without padding."""
    outputs = model(torch.tensor([prompt + response]), output_hidden_states=True)
    return outputs.hidden_states[-1][0, len(prompt) :].float()
