"""Rollouts of a seed are the same rollouts, on a busy machine and with a model that is not the built-in one."""

import multiprocessing

import pytest
import torch

from .conftest import POLICY, build_engines

PROMPTS, TIMES = 12, 3


@pytest.fixture(scope="module")
def llama(tmp_path_factory, tokenizer):
    """A random Llama in bfloat16 with the built-in policy's tokens: nearly equal probabilities, a draw of which shows
    the last bits of its logits."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from openrlhf_shear.arithmetic.policy import save, seeded

    config = LlamaConfig(
        **{"vocab_size": len(tokenizer), "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 8},
        **{"num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 512},
        **{name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id")},
        initializer_range=0.1,
    )
    return save(seeded(LlamaForCausalLM, config, seed=3), tokenizer, tmp_path_factory.mktemp("llama"))


@pytest.fixture
def busy():
    """Two processes that keep cores busy."""
    processes = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(2)]
    for process in processes:
        process.start()
    yield
    for process in processes:
        process.kill()


def _spin():
    while True:
        pass


def test_rollouts_of_a_seed_are_the_same_rollouts(cluster, arguments, tokenizer, llama, busy):
    from openrlhf.utils import get_strategy

    from openrlhf_shear.arithmetic.problems import make_problems
    from openrlhf_shear.fork.engines import Engines
    from openrlhf_shear.fork.order import PromptOrder
    from openrlhf_shear.fork.samples import LedgerSamplesGenerator
    import time

    args = arguments("--actor.model_name_or_path", str(llama))
    args.rollout.batch_size = args.rollout.vllm_generate_batch_size = PROMPTS
    engines = build_engines(args, 1, enable_prefix_caching=False, remote_rm_url=[args.reward.remote_url])
    loader = [(["arithmetic"], [p.prompt], [p.answer], [None]) for p in make_problems(PROMPTS, seed=5)]
    made = []
    for kind in (True, False):
      for _ in range(TIMES):
        order = PromptOrder(len(loader), 0)
        generator = LedgerSamplesGenerator(get_strategy(args), loader, None, tokenizer, Engines(engines, None), order)
        if not kind:
            type(generator)._begins_at_once = False
        generator.start_episode(0)
        t=time.time()
        samples, *_ = generator.generate_samples(max_len=256, max_new_tokens=160, min_new_tokens=80, temperature=1.0)
        made.append([sample.sequences[0].tolist() for sample in samples])
        print(kind, time.time()-t, sum(map(len,made[-1])))
    for engine in engines:
        cluster.kill(engine)
    for k in (0, TIMES):
        for other in made[k+1:k+TIMES]:
            print(k, sum(a==b for a,b in zip(made[k], other)), "of", len(other))
