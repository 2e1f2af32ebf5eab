"""A model with LoRA adapters is sent to engines and saved as W + s B A, under the base model's names."""

from types import SimpleNamespace as Section

import openrlhf_on_cpu  # noqa: F401
import pytest
import torch
from cases import cases
from openrlhf.trainer.ray import ppo_actor
from peft import LoraConfig, PeftModel, get_peft_model
from test_saved_model import strategy  # noqa: F401  (a fixture)
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from openrlhf_shear.tasks.arithmetic.policy import build_tokenizer, seeded
from openrlhf_shear.train.screen.outcome import RefusedError
from openrlhf_shear.train.update import lora

ALL = "all-linear"
SHAPE = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}


def base_model(tied: bool = False, dtype: torch.dtype = torch.float32) -> Qwen2ForCausalLM:
    vocabulary = len(build_tokenizer())
    config = Qwen2Config(vocab_size=vocabulary, num_key_value_heads=1, tie_word_embeddings=tied, **SHAPE)
    return seeded(Qwen2ForCausalLM, config, 0).to(dtype).eval()


def with_adapters(base: Qwen2ForCausalLM, targets: str | list[str] = ALL, **options) -> PeftModel:
    """As `Actor` and DeepSpeed make it, and as if it had been trained: B is 0 at the start."""
    options = {"r": 3, "lora_alpha": 5} | options
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", target_modules=targets, **options)).to(base.dtype)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1)
    return model.eval()


def by_hand(model: PeftModel, scale: float) -> dict[str, torch.Tensor]:
    """In float64, from PEFT's names alone."""
    state = {name.removeprefix("base_model.model."): value.double() for name, value in model.state_dict().items()}
    expected = {}
    for name, value in state.items():
        layer, wrapped, kind = name.rpartition(".base_layer.")
        if wrapped and kind == "weight":
            value = value + scale * state[f"{layer}.lora_B.default.weight"] @ state[f"{layer}.lora_A.default.weight"]
        if ".lora_" not in name:
            expected[name.replace(".base_layer", "")] = value
    return expected


def assert_rounded(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
    """Every value is the float64 one, rounded; the sum itself was made in float32."""
    assert got.keys() == expected.keys()
    for name, value in got.items():
        assert value.dtype == dtype
        torch.testing.assert_close(value.double(), expected[name], rtol=torch.finfo(dtype).eps / 2, atol=1e-7)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(*cases("train", "test_weights_are_merged_under_the_names_of_the_base_model"))
def test_weights_are_merged_under_the_names_of_the_base_model(tied, dtype, targets, options, scale):
    names = base_model(tied).state_dict().keys()
    tied &= targets != ["lm_head"]  # a tied one is refused
    model = with_adapters(base_model(tied, dtype), targets, **options)
    lora.refuse_unmergeable(model)
    with lora.merged(model):
        got = lora.whole(model, lora.gathering(False), remove_duplicate=False)
    assert got.keys() == names
    assert_rounded(got, by_hand(model, scale), dtype)


def test_nothing_is_left_of_it_even_after_an_error():
    model = with_adapters(base_model(dtype=torch.bfloat16))
    names = [name for name, _ in model.named_parameters()]
    before = {name: (value.data_ptr(), value.clone()) for name, value in model.state_dict().items()}
    for _ in range(3):
        with pytest.raises(KeyError), lora.merged(model):
            lora.whole(model, lora.gathering(False))
            raise KeyError
    assert [name for name, _ in model.named_parameters()] == names
    for name, value in model.state_dict().items():
        assert value.data_ptr() == before[name][0] and torch.equal(value, before[name][1])


def test_a_model_without_adapters_is_left_alone():
    model = base_model(tied=True)
    lora.refuse_unmergeable(model)
    with lora.merged(model):
        got = lora.whole(model, lora.gathering(False), remove_duplicate=False)
    assert got.keys() == model.state_dict().keys()
    assert all(torch.equal(got[name], value) for name, value in model.state_dict().items())


class Recorder:
    """An engine and the NCCL group to it: records the weights that upstream announces and sends."""

    def __init__(self):
        self.weights, self.ended, self.update_weight = {}, [], Section(remote=self._announce)

    def _announce(self, name, dtype, shape, empty_cache):
        self._expected = name, dtype, shape
        self.ended.append(empty_cache)

    def broadcast(self, tensor, src, stream):
        name, dtype, shape = self._expected
        assert (tensor.dtype, tensor.shape, src) == (dtype, shape, 0)
        self.weights[name] = tensor.clone()


@pytest.mark.parametrize("tied", [True, False])
def test_upstream_sends_merged_weights(monkeypatch, tied):
    """`ActorPPOTrainer.broadcast_to_vllm` itself, with a recorder for NCCL."""
    monkeypatch.setattr(ppo_actor.ray, "get", lambda refs: None)
    monkeypatch.setattr(ppo_actor, "torch_dist_barrier_and_cuda_sync", lambda: None)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    model, engine = with_adapters(base_model(tied, torch.bfloat16)), Recorder()
    upstream = ppo_actor.ActorPPOTrainer.__new__(ppo_actor.ActorPPOTrainer)
    upstream.actor = Section(model=Section(module=model))
    upstream.strategy = Section(args=Section(ds=Section(zero_stage=2, tensor_parallel_size=1), vllm=Section()))
    upstream.vllm_engines, upstream._model_update_group, upstream.use_cuda_ipc = [engine], engine, False
    with lora.merged(model):
        upstream.broadcast_to_vllm()
    expected = by_hand(model, 5 / 3)
    if tied:
        del expected["lm_head.weight"]  # vLLM ties its own
    assert_rounded(engine.weights, expected, torch.bfloat16)
    assert engine.ended == [False] * (len(expected) - 1) + [True]


@pytest.mark.parametrize(*cases("train", "test_what_cannot_be_merged_is_refused"))
def test_what_cannot_be_merged_is_refused(targets, tied, why):
    with pytest.raises(RefusedError, match=f"--ds.lora.target_modules: .*{why}"):
        lora.refuse_unmergeable(with_adapters(base_model(tied), targets))


@pytest.mark.parametrize("tied", [True, False])
def test_saved_are_the_merged_model_and_the_adapters(strategy, tmp_path, tied):  # noqa: F811
    tokenizer, model = build_tokenizer(), with_adapters(base_model(tied, torch.bfloat16))
    base_model(tied, torch.bfloat16).save_pretrained(tmp_path / "base")
    strategy.save_model(Section(module=model), tokenizer, str(tmp_path / "saved"))

    saved = tmp_path / "saved"
    base, merged = tmp_path / "base/model.safetensors", saved / "model.safetensors"
    assert merged.stat().st_size == base.stat().st_size and (saved / "tokenizer.json").is_file()
    assert merged.stat().st_mode == (saved / "config.json").stat().st_mode
    again = AutoModelForCausalLM.from_pretrained(saved)
    assert again.dtype == torch.bfloat16 and again.config.tie_word_embeddings is tied
    assert_rounded(again.state_dict(), by_hand(model, 5 / 3), torch.bfloat16)

    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    adapted = PeftModel.from_pretrained(plain, saved / lora.ADAPTER)
    theirs, ours = adapted.state_dict(), model.state_dict()
    adapters = [name for name in ours if "lora_" in name]
    assert adapters and all(torch.equal(theirs[name].bfloat16(), ours[name]) for name in adapters)
