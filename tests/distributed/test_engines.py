"""Two vLLM engines and two ZeRO-3 ranks: rollouts, weights, an update, and weights that really arrive."""

import os

import pytest
import torch

from .conftest import build_engines, credited_step, weights_of
from .processes import wait_until

# vLLM and Transformers order their bf16 sums differently. Measured on the shipped policy, mean over all tokens of
# |difference of log-probs|: 0.008 before and up to 0.018 after the updates below, which move them by 0.4 and 1.0.
LOGPROB_NOISE = 0.05  # nats a token, mean
OMEGA_NOISE = 0.02  # see test_experience.py
SIZE = 4  # rollouts of a prompt


@pytest.fixture(scope="module")
def stack(cluster, arguments, actor_group):
    """Engines and a two-rank ZeRO-3 actor group that sends them its weights."""
    args = arguments(
        *("--actor.num_gpus_per_node", "2", "--ds.zero_stage", "3", "--vllm.num_engines", "2"),
        *("--actor.adam.lr", "1e-3", "--vllm.enable_prefix_caching"),
    )
    engines = build_engines(args, 2, enable_prefix_caching=True, remote_rm_url=[args.reward.remote_url])
    group, strategy = actor_group(args, engines)
    # Ray may start an engine twice on a busy machine; before that it samples nothing.
    cluster.get(group.async_run_method("broadcast_to_vllm"))
    yield args, engines, group, strategy
    for engine in engines:
        cluster.kill(engine)


@pytest.fixture(scope="module")
def sampled(stack, tokenizer):
    """Rollouts of eight prompts from both engines, graded by the task's reward."""
    from openrlhf_shear.tasks.arithmetic.problems import make_problems
    from openrlhf_shear.train.sampling.engines import Engines
    from openrlhf_shear.train.sampling.order import PromptOrder
    from openrlhf_shear.train.sampling.samples import ShearSamplesGenerator

    args, engines, _, strategy = stack
    args.rollout.batch_size = args.rollout.vllm_generate_batch_size = 8
    loader = [(["arithmetic"], [p.prompt], [p.answer], [None]) for p in make_problems(8, seed=5)]
    order = PromptOrder(len(loader), 0)
    generator = ShearSamplesGenerator(strategy, loader, None, tokenizer, Engines(engines, lambda: None), order)
    generator.start_episode(0)
    samples, *_ = generator.generate_samples(max_len=256, max_new_tokens=160, temperature=1.0)
    return samples


def fixed_sequences(samples):
    return [sample.sequences[0].tolist() for sample in samples[:4]]


def engine_logprobs(cluster, engine, sequences) -> torch.Tensor:
    scores = cluster.get([engine.score.remote(tokens) for tokens in sequences])
    return torch.cat([torch.tensor(score) for score in scores])


def actor_logprobs(cluster, group, sequences) -> torch.Tensor:
    batches = [torch.tensor([tokens]) for tokens in sequences]
    refs = group.async_run_method_batch(
        "forward",
        sequences=batches,
        action_mask=[torch.ones_like(batch)[:, 1:] for batch in batches],
        attention_mask=[torch.ones_like(batch) for batch in batches],
    )
    return torch.cat([logprobs[0] for rank in cluster.get(refs) for logprobs in rank])


def test_rollouts_are_whole_graded_groups(sampled):
    assert len(sampled) == 8 * SIZE
    for start in range(0, len(sampled), SIZE):
        assert len({sample.prompts[0] for sample in sampled[start : start + SIZE]}) == 1
    assert {sample.rewards.item() for sample in sampled} == {0.0, 1.0}


@pytest.mark.parametrize("of", ["engines", "an odd number of groups"])
def test_two_ranks_give_the_omega_of_one_rank(cluster, stack, sampled, plain, rollouts, maker, of):
    """5 groups on 2 ranks: one rank has fewer passes, and every ZeRO-3 pass is a collective of both."""
    *_, group, strategy = stack
    samples = sampled if of == "engines" else rollouts(5)
    two, plainly = maker(group, strategy), maker(*plain)
    made = credited_step(two, samples)
    expected = weights_of(credited_step(plainly, sampled if of == "engines" else rollouts(5)))
    experiences, got = made.experiences, weights_of(made)
    assert two.credit_metrics["shear/mixed_groups"] > 0 and got.keys() == expected.keys()
    for i, omega in expected.items():
        torch.testing.assert_close(got[i], omega, atol=OMEGA_NOISE, rtol=0)
    assert torch.cat(list(expected.values())).std() > 5 * OMEGA_NOISE, "or comparing shows nothing"
    # for the update each rank gets half of the rollouts, in order
    half = len(experiences) // 2
    assert [i for e in experiences[:half] for i in e.index] == list(range(len(samples) // 2))
    assert [i for e in experiences[half:] for i in e.index] == list(range(len(samples) // 2, len(samples)))


def test_rotary_frequencies_are_float32_under_zero3(cluster, stack):
    *_, group, _ = stack
    rotary = group.actors[0].__ray_call__.remote(lambda a: a.actor.model.module.model.rotary_emb.inv_freq)
    # bfloat16 would be off by up to 2^-9
    torch.testing.assert_close(cluster.get(rotary), 10000 ** -(torch.arange(0, 32, 2) / 32), rtol=1e-6, atol=0)


def test_engines_sample_from_the_updated_policy(cluster, stack, sampled, maker):
    """Updates change the policy of `stack`; the next test changes it again.

    After an update every engine gives the actor's log-probs of fixed sequences; stale weights would be far off."""
    _, engines, group, strategy = stack
    sequences = fixed_sequences(sampled)
    before = actor_logprobs(cluster, group, sequences)
    for engine in engines:
        assert (engine_logprobs(cluster, engine, sequences) - before).abs().mean() < LOGPROB_NOISE

    gaps = []
    for _ in range(2):  # the second sync finds weights vLLM has already repacked once
        made = maker(group, strategy)
        experiences = made.make_experience_batch(sampled)
        gaps.append(made.gap)
        cluster.get(group.async_run_method_batch(method_name="append", experience=experiences))
        cluster.get(group.async_run_method("fit", kl_ctl=0.0))
        cluster.get(group.async_run_method("broadcast_to_vllm"))

    after = actor_logprobs(cluster, group, sequences)
    assert (after - before).abs().mean() > 5 * LOGPROB_NOISE, "the update must move the policy, or this shows nothing"
    for engine in engines:
        assert (engine_logprobs(cluster, engine, sequences) - after).abs().mean() < LOGPROB_NOISE
    assert all(gap.by_engine.keys() == {0, 1} and gap.by_engine[gap.worst] >= gap.mean for gap in gaps)
    assert gaps[0].mean < LOGPROB_NOISE < gaps[1].mean, "the same rollouts, of weights that are gone by then"


def test_weights_arrive_in_the_middle_of_a_generation(cluster, stack, sampled, maker):
    """Runs after the previous test, whose policy the engines have. Tokens after the pause are the new policy's."""
    from vllm import SamplingParams

    from openrlhf_shear.train.sampling.engines import Engines

    _, handles, group, strategy = stack
    experiences = maker(group, strategy).make_experience_batch(sampled)
    cluster.get(group.async_run_method_batch(method_name="append", experience=experiences))
    cluster.get(group.async_run_method("fit", kl_ctl=0.0))

    def written(actor) -> int:
        states = actor.llm.output_processor.request_states.values()
        return min((len(state.detokenizer.output_token_ids) for state in states), default=0)

    prompts = [sequence[:20] for sequence in fixed_sequences(sampled)]
    params = SamplingParams(max_tokens=200, ignore_eos=True, temperature=1.0, logprobs=0, seed=3)
    refs = [handle.generate.remote(prompt, params) for handle in handles for prompt in prompts[:2]]
    begun = 30
    wait_until(
        lambda: all(count >= begun for count in cluster.get([h.__ray_call__.remote(written) for h in handles])),
        "every engine has written something",
        pause=0.01,
    )

    with Engines(handles, None).paused():
        cluster.get(group.async_run_method("broadcast_to_vllm"))
    made = [output.outputs[0] for output in cluster.get(refs)]
    theirs = [
        [entry[token].logprob for entry, token in zip(output.logprobs, output.token_ids, strict=True)]
        for output in made
    ]
    whole = [[*prompt, *output.token_ids] for prompt, output in zip(prompts[:2] * len(handles), made, strict=True)]
    ours = actor_logprobs(cluster, group, whole).view(len(whole), -1)[:, -200:]
    difference = (torch.tensor(theirs) - ours).abs()
    assert difference[:, :begun].mean() > 5 * LOGPROB_NOISE, "they are the old policy's"
    assert difference[:, -20:].mean() < LOGPROB_NOISE


def test_an_engine_that_dies_is_not_started_again_where_nobody_can_send_it_weights(cluster):
    from openrlhf_shear.train.sampling.engines import Engines, EnginesLostError

    @cluster.remote(num_cpus=0, max_restarts=1)
    class Engine:
        def pause_generation(self):
            os._exit(1)

    with pytest.raises(EnginesLostError, match=r"--ckpt\.load_enable, or --train\.max_restarts"):
        Engines([Engine.remote()], None).call("pause_generation")
