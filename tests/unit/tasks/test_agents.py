"""The example agent in OpenRLHF's executor, with an engine that gives prepared answers."""

import asyncio
import importlib.util
import random
from pathlib import Path
from types import SimpleNamespace

import openrlhf_on_cpu  # noqa: F401
import pytest
from openrlhf.utils.agent import AgentExecutorBase

from openrlhf_shear.tasks.arithmetic.policy import build_tokenizer
from openrlhf_shear.tasks.arithmetic.problems import EOS, make_problems
from openrlhf_shear.tasks.arithmetic.solutions import write_solution

FILE = Path(__file__).parents[3] / "examples/agents/second_try.py"


def executor() -> AgentExecutorBase:
    """As OpenRLHF's rollout engine loads it."""
    spec = importlib.util.spec_from_file_location("agent_module", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert issubclass(module.AgentExecutor, AgentExecutorBase)
    return module.AgentExecutor()


class Engine:
    def __init__(self, tokenizer, answers):
        self._tokenizer, self._answers = tokenizer, list(answers)
        self.read = []

    async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
        self.read.append(self._tokenizer.decode(prompt_token_ids))
        text = self._answers.pop(0)
        tokens = self._tokenizer(text)["input_ids"]
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, text=text, finish_reason="stop")])


@pytest.mark.parametrize(
    ("answers", "reward", "turns"), [(["right"], 1.0, 1), (["wrong", "right"], 0.5, 2), (["wrong", "wrong"], 0.0, 2)]
)
def test_a_wrong_answer_is_asked_for_again(answers, reward, turns):
    tokenizer = build_tokenizer()
    (problem,) = make_problems(1, 0, "train")
    right = write_solution(problem, random.Random(0)) + EOS
    said = {"right": right, "wrong": "#0" + EOS}
    engine = Engine(tokenizer, [said[answer] for answer in answers])
    sampling = SimpleNamespace(max_tokens=None, logprobs=None)
    asked = problem.prompt, problem.answer, sampling, 512, tokenizer, engine
    rollout = asyncio.run(executor().execute(*asked))
    assert (rollout["reward"], rollout["scores"], rollout["extra_logs"]["turns"]) == (reward, reward, turns)
    assert engine.read == [problem.prompt, problem.prompt + said["wrong"] + problem.prompt][:turns]
    actions = [tokenizer.decode(rollout["observation_tokens"][start:end]) for start, end in rollout["action_ranges"]]
    assert actions == [said[answer] for answer in answers]
