"""The gap between engines and policy: its numbers by hand, comparable log-probs, and the inputs of the update."""

from types import SimpleNamespace

import openrlhf_on_cpu  # noqa: F401
import pytest
import torch
from cases import cases
from openrlhf.models.loss import PolicyLoss
from openrlhf.models.utils import log_probs_from_logits
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

from openrlhf_shear.train.carriers import ENGINE, OLDER
from openrlhf_shear.train.experience.graded_experience import GradedExperienceMaker
from openrlhf_shear.train.sampling.engine_gap import log_probs_mode, measure
from openrlhf_shear.train.sampling.samples import ShearSamplesGenerator

VOCABULARY, DRAWS = 24, 4000


def experience(engines, rows=2, tokens=5, seed=0, dtype=torch.float32) -> Experience:
    """With random log-probs and masks."""
    generator = torch.Generator().manual_seed(seed)
    ours, theirs = (-torch.rand(rows, tokens, generator=generator).to(dtype) for _ in range(2))
    mask = torch.rand(rows, tokens, generator=generator) < 0.7
    info = {} if engines is None else {ENGINE: torch.tensor(engines).float()}
    info |= {"kl": torch.zeros(rows), "logprobs_diff": torch.zeros(rows)}
    return Experience(action_log_probs=ours, rollout_log_probs=theirs, action_mask=mask, info=info, index=[0, 1])


# ── The numbers ──


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gap_equals_a_loop_over_tokens(dtype):
    experiences = [experience([0, 1], dtype=dtype), experience([1, OLDER], seed=1, dtype=dtype)]
    experiences[0].rollout_log_probs[0, 0] = float("nan")
    experiences[1].action_mask[0] = True
    experiences[1].action_log_probs[0, 0] = float("-inf")
    signed, by_engine = [], {}
    for sample in experiences:
        for row, engine in enumerate(sample.info[ENGINE].tolist()):
            for token in range(5):
                gap = float(sample.rollout_log_probs[row, token]) - float(sample.action_log_probs[row, token])
                if sample.action_mask[row, token] and abs(gap) < 100.0:  # neither NaN nor infinite
                    signed.append(gap)
                    by_engine.setdefault(int(engine), []).append(abs(gap))
    gap = measure(experiences)
    assert gap.kl == pytest.approx(sum(signed) / len(signed), abs=1e-12)
    assert gap.mean == pytest.approx(sum(map(abs, signed)) / len(signed), abs=1e-12)
    assert gap.largest == pytest.approx(max(map(abs, signed)), abs=1e-12)
    assert set(by_engine) == {0, 1, OLDER} and set(gap.by_engine) == {0, 1}
    for engine, mean in gap.by_engine.items():
        assert mean == pytest.approx(sum(by_engine[engine]) / len(by_engine[engine]), abs=1e-12)
    assert gap.by_engine[gap.worst] == max(gap.by_engine.values())
    assert gap.metrics() == {"vllm_kl": gap.kl, "vllm_gap": gap.mean, "vllm_gap_max": gap.largest}


def test_without_log_probs_or_an_engine_s_number_there_is_nothing_to_judge():
    unasked = experience([0, 1])
    unasked.rollout_log_probs = None
    empty = experience([0, 1])
    empty.action_mask[:] = False
    assert measure([unasked]) is None and measure([empty]) is None
    assert measure([unasked, experience([0, 1])]).metrics() == measure([experience([0, 1])]).metrics()
    assert measure([experience(None)]).by_engine == {}


# ── Which log-probs are comparable: vLLM's own sampler, the trainer's own function ──


def drawn(logits, mode, temperature, top_p) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and vLLM's log-probs of them."""
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.sample.sampler import Sampler

    size, empty = len(logits), torch.empty(0)
    asked = SamplingMetadata(
        temperature=torch.full((size,), temperature),
        top_p=None if top_p == 1.0 else torch.full((size,), top_p),
        **{"all_greedy": False, "all_random": True, "top_k": None, "max_num_logprobs": 0, "no_penalties": True},
        **{"generators": {row: torch.Generator().manual_seed(row) for row in range(size)}, "output_token_ids": []},
        **{"prompt_token_ids": None, "allowed_token_ids_mask": None, "bad_words_token_ids": {}},
        **dict.fromkeys(("frequency_penalties", "presence_penalties", "repetition_penalties"), empty),
        logitsprocs=LogitsProcessors(),
    )
    output = Sampler(mode).forward(logits.clone(), asked)
    return output.sampled_token_ids.flatten(), output.logprobs_tensors.logprobs[:, 0]


def gaps(mode, temperature, top_p) -> tuple[torch.Tensor, torch.Tensor]:
    """log q - log p of drawn tokens, the engine's as it gives it; and the true log q - log p, in float64."""
    logits = (2 * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(0))).expand(DRAWS, -1)
    tokens, theirs = drawn(logits, mode, temperature, top_p)
    ours = log_probs_from_logits(logits.double().clone()[None], tokens[None], temperature)[0]
    probabilities = (logits[0].double() / temperature).softmax(0)
    ordered, order = probabilities.sort(descending=True)
    nucleus = order[: 1 + int((ordered.cumsum(0) < top_p - 1e-9).sum())]
    assert set(tokens.tolist()) <= set(nucleus.tolist())
    return theirs.double() - ours, -probabilities[nucleus].sum().log().expand(DRAWS)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_without_top_p_an_engine_s_log_probs_are_the_trainer_s_at_any_temperature(temperature):
    mode = log_probs_mode(temperature, 1.0)
    given, true = gaps(mode, temperature, 1.0)
    assert mode == "processed_logprobs"
    assert given.abs().max() < 1e-5 and true.abs().max() < 1e-12
    raw, _ = gaps("raw_logprobs", temperature, 1.0)
    assert (raw.abs().max() < 1e-5) == (temperature == 1.0)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_with_top_p_processed_log_probs_are_biased_by_the_nucleus_and_raw_ones_are_not(temperature):
    """The importance ratio p / q of every drawn token is the nucleus' share, below 1: nothing averages out."""
    processed, true = gaps("processed_logprobs", temperature, 0.8)
    torch.testing.assert_close(processed, true, atol=1e-5, rtol=0)
    assert processed.min() > 0.05
    assert log_probs_mode(temperature, 0.8) == ("raw_logprobs" if temperature == 1.0 else None)
    raw, _ = gaps("raw_logprobs", temperature, 0.8)
    assert (raw.abs().max() < 1e-5) == (temperature == 1.0)


# ── What is asked for, and what the update gets ──


class Engines:
    """One engine that does nothing."""

    handles = (object(),)


@pytest.mark.parametrize(*cases("train", "test_log_probs_of_drawn_tokens_are_asked_for_in_training"))
def test_log_probs_of_drawn_tokens_are_asked_for_in_training(temperature, top_p, evaluates, log_probs):
    args = SimpleNamespace(
        rollout=SimpleNamespace(temperature=temperature, top_p=top_p, n_samples_per_prompt=2),
        train=SimpleNamespace(agent_func_path=None, partial_rollout_enable=False),
        algo=SimpleNamespace(dynamic_filtering_enable=False),
    )
    generator = ShearSamplesGenerator(SimpleNamespace(args=args), None, None, None, Engines(), order=None)
    generator._evaluates = evaluates
    sampling = generator._sampling({"temperature": temperature, "top_p": top_p})
    assert (sampling.temperature, sampling.top_p, sampling.logprobs) == (temperature, top_p, log_probs)


def test_rollouts_that_waited_are_of_older_weights():
    args = SimpleNamespace(
        rollout=SimpleNamespace(temperature=1.0, top_p=1.0, n_samples_per_prompt=1, batch_size=1),
        vllm=SimpleNamespace(enable_sleep=False),
        algo=SimpleNamespace(dynamic_filtering_enable=False),
    )
    generator = ShearSamplesGenerator(SimpleNamespace(args=args), None, None, None, Engines(), order=range(0))
    generator.consumed = 0
    generator.reserve = [
        Experience(info={ENGINE: torch.tensor([0.0])}),
        Experience(info={}),
    ]  # the last of an old checkpoint
    for _ in range(2):
        (sample,), *_ = generator.generate_samples()
        assert sample.info[ENGINE].tolist() == [OLDER]


def made(monkeypatch, level, samples, judge=None):
    """The experience of samples whose forward passes are done."""
    advantage = SimpleNamespace(is_correction_level=level, estimator="group_norm")
    strategy = SimpleNamespace(args=SimpleNamespace(algo=SimpleNamespace(advantage=advantage)))
    maker = GradedExperienceMaker(*[None] * 5, strategy, None)
    maker.judge_gap = judge or maker.judge_gap
    monkeypatch.setattr(RemoteExperienceMaker, "make_experience", lambda self, samples: samples)
    return maker, maker.make_experience(samples)


@pytest.mark.parametrize("level", ["off", "token", "seq"])
def test_without_correction_the_update_is_the_one_without_log_probs(monkeypatch, level):
    asked, unasked = experience([0, 1]), experience([0, 1])
    theirs, unasked.rollout_log_probs = asked.rollout_log_probs, None
    (_, (given,)), (_, (without,)) = (made(monkeypatch, level, [sample]) for sample in (asked, unasked))
    assert ENGINE not in given.info and ENGINE not in without.info
    if level != "off":
        assert given.rollout_log_probs is theirs
        return
    assert given.rollout_log_probs is None
    loss = PolicyLoss(is_correction_level=level)
    now = (given.action_log_probs + 0.1).requires_grad_()
    results = []
    for sample in (given, without):
        value, *_, vllm_kl, _ = loss(
            now, sample.action_log_probs, torch.ones(2, 5), sample.action_mask, sample.rollout_log_probs
        )
        results.append((value, *torch.autograd.grad(value, now)))
        assert vllm_kl is None
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_the_gap_of_a_step_is_judged_before_its_update(monkeypatch):
    judged = []
    maker, experiences = made(monkeypatch, "off", [experience([0, 1])], lambda *given: judged.append(given))
    ((gap, of_step, policy),) = judged
    assert gap is maker.gap and gap == measure([experience([0, 1])])
    assert of_step is experiences and policy is maker
