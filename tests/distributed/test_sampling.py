"""Rollouts of a seed are the same to the last bit of their log-probs, whenever their requests reach the engine; with a
model that is not the built-in one."""

import os
import signal
import time
from multiprocessing import active_children

import pytest

from .conftest import build_engines

PROMPTS, TOKENS = 6, 40
DELAY = 0.05  # seconds until a request is sent, of a busy machine: a few of vLLM's steps


@pytest.fixture(scope="module")
def llama(tmp_path_factory, tokenizer):
    """A random Llama in bfloat16 with the built-in policy's tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from openrlhf_shear.tasks.arithmetic.policy import save, seeded

    config = LlamaConfig(
        **{"vocab_size": len(tokenizer), "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 10},
        **{"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512},
        **{name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id")},
        initializer_range=0.1,
    )
    return save(seeded(LlamaForCausalLM, config, seed=3), tokenizer, tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def args(arguments, llama):
    made = arguments("--actor.model_name_or_path", str(llama), "--algo.advantage.is_correction_level", "token")
    made.reward.remote_url = None
    made.rollout.batch_size = made.rollout.vllm_generate_batch_size = PROMPTS
    return made


@pytest.fixture(scope="module")
def engine(cluster, args):
    (made,) = build_engines(args, 1, enable_prefix_caching=True)
    yield made
    cluster.kill(made)


@pytest.fixture
def draw(args, engine, tokenizer):
    """A function: seconds between two prompts' arrivals at the engine, whether a batch begins at once -> tokens and
    log-probs of one seed's rollouts."""
    from openrlhf.utils import get_strategy

    from openrlhf_shear.tasks.arithmetic.problems import make_problems
    from openrlhf_shear.train.sampling.engines import Engines
    from openrlhf_shear.train.sampling.order import PromptOrder
    from openrlhf_shear.train.sampling.samples import ShearSamplesGenerator

    class Slow:
        """The engine's handle, which sends each prompt after a delay."""

        def __init__(self, seconds: float):
            self.seconds, self.hold, self.generate_responses = seconds, engine.hold, self

        def remote(self, *request):
            time.sleep(self.seconds)
            return engine.generate_responses.remote(*request)

    loader = [(["arithmetic"], [p.prompt], [p.answer], [None]) for p in make_problems(PROMPTS, seed=5)]

    def rollouts(delay: float, at_once: bool = True) -> list[tuple[list[int], list[float]]]:
        kind = type("Known", (ShearSamplesGenerator,), {} if at_once else {"_begins_at_once": False})
        order, strategy = PromptOrder(len(loader), 0), get_strategy(args)
        generator = kind(strategy, loader, None, tokenizer, Engines([Slow(delay)], None), order)
        generator.start_episode(0)
        samples, *_ = generator.generate_samples(max_len=256, max_new_tokens=TOKENS, temperature=1.0)
        return [(sample.sequences[0].tolist(), sample.rollout_log_probs[0].tolist()) for sample in samples]

    return rollouts


def test_rollouts_of_a_seed_are_the_same_rollouts(draw):
    known = draw(0.0)
    assert draw(DELAY) == known
    if draw(DELAY, at_once=False) == known:
        pytest.skip("this processor sums a request alone as it sums a batch: nothing had to be held")


def test_a_call_ends_when_the_core_dies_that_should_answer_it(cluster, engine):
    """Also a generation that the engine holds. Keep this test last: it kills the engine."""
    from vllm import SamplingParams

    from openrlhf_shear.train.sampling.engines import is_dead

    cluster.get(engine.hold.remote(2))
    generation = engine.generate.remote([1, 2, 3], SamplingParams(max_tokens=1))
    assert not cluster.wait([generation], timeout=2.0)[0], "it waits for another"
    (core,) = cluster.get(engine.__ray_call__.remote(lambda actor: [p.pid for p in active_children()]))
    os.kill(core, signal.SIGSTOP)  # so that it answers nothing, as while it reads new weights
    asked = engine.reset_prefix_cache.remote()
    assert not cluster.wait([asked], timeout=2.0)[0]
    os.kill(core, signal.SIGKILL)
    for call in (asked, generation):
        with pytest.raises(cluster.exceptions.RayError) as raised:
            cluster.get(call, timeout=60.0)
        assert is_dead(raised.value), raised.value
