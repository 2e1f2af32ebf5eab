"""Lengths of an engine's response count the policy's tokens, at every limit and for every end."""

import asyncio
from types import SimpleNamespace

import openrlhf_on_cpu  # noqa: F401
import pytest
import torch
from cases import cases
from openrlhf.trainer.ppo_utils.experience import (
    Experience,
    make_experience_batch,
    remove_padding_in_sequences,
    split_experience_batch,
)
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor
from vllm import SamplingParams

from openrlhf_shear.tasks.arithmetic.policy import build_tokenizer
from openrlhf_shear.train.carriers import FAILED, Prompt
from openrlhf_shear.train.experience.shaping import shape_rewards
from openrlhf_shear.train.sampling.engine import RewardRolloutActor
from openrlhf_shear.train.sampling.samples import ShearSamplesGenerator

EOS_ID = build_tokenizer().eos_token_id


def generator(remote="agent", agent=None) -> ShearSamplesGenerator:
    algo, reward = SimpleNamespace(dynamic_filtering_enable=False), SimpleNamespace(remote_url=remote)
    strategy = SimpleNamespace(
        args=SimpleNamespace(reward=reward, algo=algo, train=SimpleNamespace(agent_func_path=agent))
    )
    return ShearSamplesGenerator(strategy, None, None, build_tokenizer(), SimpleNamespace(handles=[]), None)


def response(tokens: int, ranges: list[tuple[int, int]], **more) -> dict:
    """An executor's, of so many tokens in all."""
    return {
        **{"prompt": "1+1=", "label": "2", "observation_tokens": list(range(3, 3 + tokens)), "action_ranges": ranges},
        **{"rollout_log_probs": [0.0] * tokens, "reward": 1.0, "scores": 1.0, "truncated": False, "extra_logs": {}},
        **more,
    }


def processed(tokens, ranges, max_len=64, **more) -> Experience:
    return generator()._process_response_into_experience(response(tokens, ranges, **more), max_len=max_len)


@pytest.mark.parametrize(*cases("train", "test_lengths_count_the_policy_s_tokens"))
def test_lengths_count_the_policy_s_tokens(tokens, ranges, length, total):
    made = processed(tokens, ranges)
    assert made.response_length.tolist() == [length] == made.action_mask.sum(1).tolist()
    assert made.total_length.tolist() == [total] and made.sequences.shape == (1, total)
    assert made.action_mask.shape == made.rollout_log_probs.shape == (1, total - 1)
    written = [at for start, end in ranges for at in range(start, min(end, total))]
    assert (torch.where(made.action_mask[0])[0] + 1).tolist() == written, "column j speaks of token j + 1"


def test_an_agent_s_reward_without_scores_is_its_score():
    """Else the filter lets every group pass, and a micro-batch with a failed rollout cannot be joined."""
    rows = [processed(30, [(10, 30)], reward=reward, scores=None) for reward in (1.0, 0.25, float("nan"))]
    assert torch.cat([row.scores for row in rows]).tolist() == [1.0, 0.25, 0.0]
    assert [row.info[FAILED].item() for row in rows] == [0.0, 0.0, 1.0]


def test_a_reward_model_s_rollouts_have_the_same_lengths():
    made = generator(remote=None)._process_response_into_experience(response(50, [(10, 20), (35, 50)]), max_len=64)
    assert made.response_length.tolist() == [25] and FAILED not in made.info


def test_padding_is_known_by_its_mask_where_it_is_the_end_token_too():
    eos = 1
    rows = [
        processed(7, [(4, 7)], observation_tokens=[5, 6, 7, 8, 9, 9, eos]),
        processed(9, [(4, 9)], observation_tokens=[5, 6, 7, 8, 9, 9, 9, 9, 9]),  # a stop string: no end token
        processed(5, [(4, 5)], observation_tokens=[5, eos, 7, eos, eos]),  # end tokens in the prompt, and alone
    ]
    for i, row in enumerate(rows):
        row.index = [i]
    batch = Experience.concat_experiences(rows, pad_token_id=eos)
    assert batch.attention_mask.sum(1).tolist() == [7, 9, 5] == batch.total_length.int().tolist()
    assert batch.action_mask.sum(1).tolist() == [3, 5, 1] == batch.response_length.tolist()
    again = make_experience_batch(remove_padding_in_sequences(split_experience_batch(batch)))
    for i, row in enumerate(rows):
        seen = again.sequences[i][again.attention_mask[i].bool()]
        assert torch.equal(seen, row.sequences[0])
        assert torch.equal(torch.where(again.action_mask[i])[0], torch.where(row.action_mask[0])[0])


def shaping(**given) -> SimpleNamespace:
    reward = {"overlong_buffer_len": None, "overlong_penalty_factor": 1.0, "stop_properly_penalty_coef": None}
    rollout = SimpleNamespace(max_new_tokens=given.pop("max_new_tokens", None))
    data = SimpleNamespace(max_len=given.pop("max_len", 2048))
    return SimpleNamespace(reward=SimpleNamespace(**reward | {"clip_range": None} | given), rollout=rollout, data=data)


def penalised(made: Experience, **given) -> float:
    """Return a reward of 1 after the penalty."""
    shape_rewards([made], shaping(**given))
    return made.rewards.item()


def dapo(length: int, limit: int, buffer: int) -> float:
    """Equation 13 of DAPO (Yu et al. 2025), branch by branch."""
    if length <= limit - buffer:
        return 0.0
    return ((limit - buffer) - length) / buffer if length <= limit else -1.0


@pytest.mark.parametrize("length", [1, 1236, 1237, 1492, 1748])
def test_the_overlong_penalty_is_dapo_s_within_the_tokens_after_the_prompt(length):
    """A prompt of 300 leaves 1748 of 2048 tokens; a response that is cut off there pays in full."""
    made = processed(300 + length, [(300, 300 + length)], max_len=2048)
    assert penalised(made, overlong_buffer_len=512.0) == pytest.approx(1 + dapo(length, 1748, 512), abs=1e-6)
    assert made.info["reward"].tolist() == made.rewards.tolist()


@pytest.mark.parametrize("length", [100, 900, 1024])
def test_the_overlong_penalty_is_by_max_new_tokens_where_it_is_given(length):
    made = processed(300 + length, [(300, 300 + length)], max_len=2048)
    left = penalised(made, overlong_buffer_len=256.0, overlong_penalty_factor=0.5, max_new_tokens=1024)
    assert left == pytest.approx(1 + 0.5 * dapo(length, 1024, 256), abs=1e-6)


def test_tool_outputs_are_no_overlong_response():
    """452 tokens from the first to the last, 349 of them the policy's."""
    made = processed(552, [(100, 300), (403, 552)], max_len=2048)
    assert made.response_length.tolist() == [349]
    assert penalised(made, overlong_buffer_len=100.0, max_new_tokens=500) == 1.0
    cut = processed(2048, [(100, 300), (403, 2048)], max_len=2048)  # a conversation that fills the window
    assert penalised(cut, overlong_buffer_len=100.0) == 0.0


NAMED = {"score": 7.0, "truncated": 7.0, "response_length": 7.0, "reward": 7.0, "reward_failed": 1.0, "filler": 1.0}
NAMED |= {"kl": 7.0, "timing/tool": 7.0, "rollout/reward_mean": 7.0, "mine/kl": 4.0, "turns": 2.0, "mine/turns": 3.0}


def test_extra_logs_overwrite_no_metric(caplog):
    ours = generator()
    made = [
        ours._process_response_into_experience(response(30, [(10, 30)], extra_logs=NAMED), max_len=64) for _ in range(2)
    ]
    info = {name: value.item() for name, value in made[0].info.items()}
    assert (info["reward"], info["score"], info[FAILED], info["response_clip_ratio"]) == (1.0, 1.0, 0.0, False)
    assert (info["turns"], info["mine/turns"], info["mine/kl"]) == (2.0, 3.0, 4.0)
    assert info["extra_score"] == info["extra_timing_tool"] == info["extra_kl"] == 7.0
    assert not {"truncated", "response_length", "filler", "kl", "timing/tool", "rollout/reward_mean"} & info.keys()
    assert made[0].response_length.item() == 20


# ── Through an engine ──


class Engine(RewardRolloutActor):
    """Engine without vLLM, which answers with as many tokens as it may, or with these."""

    tokenizer = build_tokenizer()

    def __init__(self, *answers: list[int], executor=None):
        self.answers, self.asked = list(answers), []
        self.executor, self._has_agent, self._grading = executor, executor is not None, None

    async def _generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
        most = sampling_params.max_tokens
        self.asked.append((len(prompt_token_ids), most))
        tokens = self.answers.pop(0) if self.answers else [9] * most
        reason = "length" if len(tokens) == most and tokens[-1] == 9 else "stop"
        output = SimpleNamespace(token_ids=tokens[:most], text="9" * len(tokens), finish_reason=reason, logprobs=None)
        return SimpleNamespace(outputs=[output])


def sampled(engine: Engine, prompt: str, max_len: int, max_new=None) -> Experience:
    samples = generator(agent="agent.py" if engine.executor else None)
    known = Prompt((42, "episode", 0, 0), prompt, "2", None)
    (known,) = samples._tokenized([known], max_len - (max_new or 1))
    (answer,) = asyncio.run(engine.generate_responses(known, SamplingParams(max_tokens=max_new), max_len, 1))
    answer |= {"prompt": prompt, "label": "2", "reward": 1.0, "scores": 1.0}
    return samples._process_response_into_experience(answer, max_len=max_len)


@pytest.mark.parametrize(*cases("train", "test_prompts_at_the_limit"))
def test_prompts_at_the_limit(prompt, max_new, asked, length):
    engine = Engine()
    made = sampled(engine, "1" * prompt, 32, max_new)
    assert engine.asked == [tuple(asked)]
    assert (made.response_length.item(), made.total_length.item()) == (length, sum(asked))
    assert made.truncated.item() and made.action_mask.sum() == length
    penalty = penalised(made, overlong_buffer_len=4.0, max_new_tokens=max_new, max_len=32)
    assert penalty == 0.0, "a response that ran into its limit pays in full"


@pytest.mark.parametrize("answer", [[EOS_ID], [9, 9, EOS_ID], [9, 9, 9]])
def test_responses_that_end_by_themselves(answer):
    """The end token alone; at the end; none, where a stop string ended it: vLLM gives its tokens, too."""
    made = sampled(Engine(answer), "11", 32)
    assert (made.response_length.item(), made.truncated.item()) == (len(answer), False)
    assert made.sequences[0, 2:].tolist() == answer and made.action_mask[0].tolist() == [0] + [1] * len(answer)


def test_an_end_token_at_the_limit_is_no_truncation():
    made = sampled(Engine([9] * 21 + [EOS_ID]), "1" * 10, 32)
    assert not made.truncated.item() and made.info["response_clip_ratio"].item(), "which only looks at the length"


class Talk(AgentInstanceBase):
    """Says eight tokens after each turn, and never ends."""

    def __init__(self):
        pass

    async def step(self, states, **kwargs):
        return {"rewards": torch.tensor(0.5), "environment_feedback": "8" * 8, "done": False}


def test_a_conversation_ends_at_the_limit():
    engine = Engine([9, 9, EOS_ID], executor=MultiTurnAgentExecutor(Talk))
    made = sampled(engine, "1" * 10, 32)  # the second turn runs into it
    assert engine.asked == [(10, 22), (21, 11)]
    assert (made.response_length.item(), made.total_length.item(), made.truncated.item()) == (3 + 11, 32, True)
    engine = Engine([9, 9, EOS_ID], [9, 9, EOS_ID], executor=MultiTurnAgentExecutor(Talk))
    made = sampled(engine, "1" * 10, 32)  # the environment fills the window
    assert (made.response_length.item(), made.total_length.item(), made.truncated.item()) == (3 + 3, 32, False)
