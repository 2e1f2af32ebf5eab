"""Rollouts of a seed are the same rollouts to the last bit of their log-probs, whenever their requests reach the
engine, with a model that is not the built-in one."""

import pytest

from .conftest import build_engines

PROMPTS, TOKENS = 6, 40
DELAY = 0.04  # seconds, the most before a request is sent: longer than a step of vLLM's


@pytest.fixture(scope="module")
def llama(tmp_path_factory, tokenizer):
    """A random Llama in bfloat16 with the built-in policy's tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from openrlhf_shear.arithmetic.policy import save, seeded

    config = LlamaConfig(
        **{"vocab_size": len(tokenizer), "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512},
        **{name: getattr(tokenizer, name) for name in ("pad_token_id", "eos_token_id")},
        initializer_range=0.1,
    )
    return save(seeded(LlamaForCausalLM, config, seed=3), tokenizer, tmp_path_factory.mktemp("llama"))


@pytest.fixture
def sample(cluster, arguments, tokenizer, llama):
    """A function: whether a batch begins at once -> the tokens and log-probs of all rollouts of a seed. The engine
    takes another time for each prompt, as on a busy machine."""
    from openrlhf.utils import get_strategy

    from openrlhf_shear.arithmetic.problems import make_problems
    from openrlhf_shear.fork.engines import Engines
    from openrlhf_shear.fork.order import PromptOrder
    from openrlhf_shear.fork.samples import LedgerSamplesGenerator

    class Slow:  # here, as Ray's workers do not import tests
        def __call__(self, *args, **kwargs):
            import random
            import time

            time.sleep(DELAY * random.random())
            return tokenizer(*args, **kwargs)

        def __getattr__(self, name):
            return getattr(tokenizer, name)

    args = arguments("--actor.model_name_or_path", str(llama), "--algo.advantage.is_correction_level", "token")
    args.rollout.batch_size = args.rollout.vllm_generate_batch_size = PROMPTS
    engines = build_engines(args, 1, enable_prefix_caching=False, remote_rm_url=[args.reward.remote_url])
    loader = [(["arithmetic"], [p.prompt], [p.answer], [None]) for p in make_problems(PROMPTS, seed=5)]

    def draw(at_once: bool) -> list[tuple[list[int], list[float]]]:
        order, strategy = PromptOrder(len(loader), 0), get_strategy(args)
        kind = type("Known", (LedgerSamplesGenerator,), {"_begins_at_once": at_once})
        generator = kind(strategy, loader, None, Slow(), Engines(engines, None), order)
        generator.start_episode(0)
        import time
        t = time.time()
        samples, *_ = generator.generate_samples(max_len=256, max_new_tokens=TOKENS, temperature=1.0)
        print(at_once, time.time() - t)
        return [(sample.sequences[0].tolist(), sample.rollout_log_probs[0].tolist()) for sample in samples]

    yield draw
    for engine in engines:
        cluster.kill(engine)


def test_rollouts_of_a_seed_are_the_same_rollouts(sample):
    made = [sample(True) for _ in range(4)]
    loose = [sample(False) for _ in range(4)]
    for k in made + loose:
        print(sum(a == b for a, b in zip(k, made[0])), sum(a == b for a, b in zip(k, loose[0])), sum(a[0] == b[0] for a, b in zip(k, made[0])), len(k))
