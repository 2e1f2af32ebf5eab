"""A training run's engines: its suite, interrupted, asked to stop, asleep; and an agent with its own parameters."""

import asyncio
import json
from argparse import Namespace
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import openrlhf_on_cpu  # noqa: F401
import pytest
import ray
import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor, SingleTurnAgentExecutor
from vllm import SamplingParams
from vllm.logprobs import FlatLogprobs, Logprob

from openrlhf_shear.sampling.records import Question
from openrlhf_shear.sampling.sampler import Request, Sampling
from openrlhf_shear.train.carriers import Prompt
from openrlhf_shear.train.run import evaluation as module
from openrlhf_shear.train.run.evaluation import TrainingSuite, scores_of_suite
from openrlhf_shear.train.sampling import engine_sampler
from openrlhf_shear.train.sampling.engine import RewardRolloutActor, Watched
from openrlhf_shear.train.sampling.engine_sampler import EngineSampler
from openrlhf_shear.train.screen.outcome import StoppedError


class Engines:
    handles = ()

    def __init__(self):
        self.called = []

    def call(self, method):
        self.called.append(method)


def arguments(folder):
    rows = [json.dumps({"prompt": f"{i} + 1?", "label": str(i + 1)}) + "\n" for i in range(4)]
    (folder / "held.jsonl").write_text("".join(rows))
    suite = {"suite": str(folder / "held.jsonl"), "data_dir": None, "limit": 0, "k": 2, "temperature": 0.1}
    reward = {"remote_url": ["math"], "cores": 1, "timeout": 0.0, "memory_mb": 1024, "allow_unsandboxed": False}
    data = {"input_key": "prompt", "label_key": "label", "apply_chat_template": True, "input_template": None}
    return Namespace(
        ckpt=Namespace(path=str(folder / "ckpt")),
        eval=Namespace(**suite),
        vllm=Namespace(enable_sleep=True),
        reward=Namespace(**reward, answer_format="boxed"),
        data=Namespace(**data, max_len=512),
        actor=Namespace(model_name_or_path="/models/a"),
        rollout=Namespace(max_new_tokens=64),
        train=Namespace(seed=1),
    )


def test_an_interrupted_evaluation_begins_anew_with_the_engines_awake(tmp_path, monkeypatch):
    engines, folder, seen = Engines(), tmp_path / "ckpt/evaluations/step5", []
    folder.mkdir(parents=True)
    (folder / "questions.jsonl").write_text("of before")

    def evaluate(plan, store, sampler, grading):
        seen.append(folder.exists())
        raise StoppedError("seen enough")

    monkeypatch.setattr(module, "evaluate", evaluate)
    with pytest.raises(StoppedError):
        TrainingSuite(arguments(tmp_path), engines, None).evaluate(5)
    assert seen == [False] and engines.called == ["wake_up", "sleep"], "calls restart an engine that died"


def benchmark(score: float | None) -> dict:
    """A row of results.json."""
    row = {"task": "math", "problems": 30, "k": 4, "avg@4": score, "stderr": None, "timeouts": 1, "graded": 120}
    return row | {"truncated_fraction": 0.25, "response_tokens_mean": 80, "reasons": {"no_answer": 12}}


def test_the_scores_of_a_suite_are_its_metrics_and_its_table():
    rows = {f"b{number}": benchmark(number / 10) for number in range(10)}
    scores = scores_of_suite(rows)
    assert scores.suite == [(f"b{number}", number / 10, 30) for number in range(10)] + [("average", 0.45, 300)]
    assert (scores.metrics["suite/b3"], scores.metrics["suite/average"]) == (0.3, 0.45)
    details = {name: value for name, value in scores.metrics.items() if name.endswith("/b3") and name[5] == "_"}
    assert details == {
        **{"suite_timeouts/b3": 1.0, "suite_truncated_fraction/b3": 0.25, "suite_response_tokens_mean/b3": 80.0},
        **{"suite_problems/b3": 30.0, "suite_no_answer_fraction/b3": 0.1},
    }
    lost = scores_of_suite(rows | {"b3": benchmark(None)})
    assert ("b3", None, 30) in lost.suite and "suite/average" not in lost.metrics, "of nine it is another average"
    assert scores_of_suite({"b1": benchmark(0.5)}).suite == [("b1", 0.5, 30)]


def test_a_request_to_stop_ends_an_evaluation(monkeypatch):
    asked = []

    def check_stop():
        asked.append(1)
        if len(asked) > 3:
            raise StoppedError("stopped by SIGTERM")

    engine = type("Engine", (), {"complete": SimpleNamespace(remote=lambda *given: object())})()
    fake = SimpleNamespace(wait=lambda refs, num_returns, timeout: ([], refs), exceptions=ray.exceptions)
    monkeypatch.setattr(engine_sampler, "ray", fake)
    monkeypatch.setattr(engine_sampler, "question_ids", lambda *given: [1])
    sampler = EngineSampler([engine], None, Sampling(), None, 512, check_stop)
    with pytest.raises(StoppedError):
        next(sampler([Request(Question("b", str(i), [], "1"), 0, i) for i in range(9)]))


PROMPT = Prompt((7, "episode", 0, 3), "pq", "l", None)


def agent_s_engine(executor, generate, tokenizer=None) -> RewardRolloutActor:
    """An engine without vLLM, whose generations are `generate`'s."""
    engine = object.__new__(RewardRolloutActor)
    engine._failed, engine._has_agent, engine.executor, engine._generate = 0, True, executor, generate
    engine.tokenizer = tokenizer
    return engine


def test_an_agent_s_own_sampling_parameters_keep_log_probs_and_a_seed_for_each_rollout_and_turn():
    given = []

    async def generate(ids, parameters, *_):
        given.append((parameters.temperature, parameters.logprobs, parameters.seed))
        return SimpleNamespace(outputs=[])

    class Executor:
        async def execute(self, sampling_params, llm_engine, **_):
            await llm_engine.generate([1], sampling_params)
            own = SamplingParams(temperature=0.5)
            for _ in range(3):  # candidates of one turn
                await llm_engine.generate([1, 2], own)
            return {"observation_tokens": [], "rollout_log_probs": None, "reads": own.logprobs}

    engine = agent_s_engine(Executor(), generate)
    made = asyncio.run(engine.generate_responses(PROMPT, SamplingParams(temperature=1.0, logprobs=0), 64, 2))
    assert [sample["reads"] for sample in made] == [0, 0], "an executor that reads its own parameters again"
    assert [call[:2] for call in sorted(given)] == [(0.5, 0)] * 6 + [(1.0, 0)] * 2
    assert len({seed for *_, seed in given}) == 8 and None not in {seed for *_, seed in given}


class TwoTurns(AgentInstanceBase):
    """Says "ab" after each turn, and asks for parameters of its own in the second."""

    def __init__(self):
        self.turn = 0

    async def step(self, states, **_):
        self.turn += 1
        own = SamplingParams(temperature=0.5, max_tokens=8)
        feedback = {"environment_feedback": "ab", "done": self.turn == 2, "sampling_params": own}
        return {"rewards": torch.tensor(1.0), **feedback}


@pytest.mark.parametrize("asked", [0, None])
def test_log_probs_of_turns_with_an_agent_s_own_parameters_are_kept_in_openrlhfs_executor(asked):
    """The executor passes a copy of the parameters, so it never sees that log-probs were asked for."""

    async def generate(ids, parameters, *_):
        log_probs = [{token: SimpleNamespace(logprob=-len(ids) - token)} for token in (7, 8, 9)]
        kept = None if parameters.logprobs is None else log_probs
        return SimpleNamespace(
            outputs=[SimpleNamespace(token_ids=[7, 8, 9], text="xyz", finish_reason="stop", logprobs=kept)]
        )

    def tokenizer(text, **_):
        return {"input_ids": torch.tensor([[ord(letter) for letter in text]])}

    engine = agent_s_engine(MultiTurnAgentExecutor(TwoTurns), generate, tokenizer)
    parameters = SamplingParams(temperature=1.0, logprobs=asked, max_tokens=8)
    (sample,) = asyncio.run(engine.generate_responses(PROMPT, parameters, 64, 1))
    assert sample["observation_tokens"] == [112, 113, 7, 8, 9, 97, 98, 7, 8, 9, 97, 98]
    whole = [0, 0, -9, -10, -11, 0, 0, -14, -15, -16, 0, 0]
    assert sample["rollout_log_probs"] == (None if asked is None else whole)


@pytest.mark.parametrize(("max_tokens", "logprobs"), [(None, 0), (5, 0), (5, None)])
def test_a_turn_in_arrays_is_the_turn_of_openrlhfs_executor_in_lists(max_tokens, logprobs):
    """Tokens, ranges, log-probs, the limit of tokens and whether it was reached; the prompt comes as token ids."""
    drawn, limits = {7: -0.5, 8: -1.25, 9: -2.0}, []

    async def generate(ids, parameters, *_):
        limits.append(parameters.max_tokens)
        entries = FlatLogprobs() if parameters.flat_logprobs else []
        for token, value in drawn.items():
            entries.append({token: Logprob(value)})
        outputs = {"token_ids": list(drawn), "finish_reason": "length", "text": "not read"}
        return SimpleNamespace(
            outputs=[SimpleNamespace(**outputs, logprobs=None if parameters.logprobs is None else entries)]
        )

    engine = agent_s_engine(None, generate)
    engine._has_agent, engine._grading = False, None
    parameters = SamplingParams(max_tokens=max_tokens, logprobs=logprobs)
    ids = [5, 6]
    (ours,) = asyncio.run(engine.generate_responses(replace(PROMPT, ids=ids), parameters, 16, 1))
    theirs = asyncio.run(
        SingleTurnAgentExecutor().execute(
            **{"prompt": "pq", "label": "l", "sampling_params": parameters, "max_length": 16},
            hf_tokenizer=lambda text, **_: {"input_ids": torch.tensor([ids])},
            llm_engine=SimpleNamespace(generate=lambda ids, parameters, multi_modal_data: generate(ids, parameters)),
        )
    )
    assert limits[0] == limits[1]
    plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in ours.items()}
    assert plain == {name: theirs[name] for name in plain} and len(plain) == 5


def test_samples_of_a_prompt_are_neighbours_in_the_order_of_prompts():
    """Whatever their seeds: vLLM starts the smallest priority first, and finds a prompt that it has just read."""
    started = []
    watched = Watched(SimpleNamespace(generate=lambda *_, priority: started.append(priority)))

    async def generate(ids, parameters, *_):
        watched.generate(ids, parameters, "request")
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=[7], finish_reason="stop", logprobs=None)])

    engine = agent_s_engine(None, generate)
    engine._has_agent, engine._grading = False, None
    for number in (1, 0):
        prompt = replace(PROMPT, place=(7, "episode", 0, number), ids=[5])
        asyncio.run(engine.generate_responses(prompt, SamplingParams(), 16, 3))
    assert started == [3, 4, 5, 0, 1, 2]
