"""A model that training saves is like the one that it began with: its size, its dtype, and who may read it."""

import os
from types import SimpleNamespace as Section

import pytest
import torch
from transformers import AutoModelForCausalLM

from openrlhf_shear.arithmetic.policy import build_tokenizer, seeded
from openrlhf_shear.fork import cpu_backend

cpu_backend.install()  # the module below imports OpenRLHF's

from openrlhf_shear.fork.strategy import ShearStrategy  # noqa: E402


@pytest.fixture
def strategy(monkeypatch):
    made = ShearStrategy.__new__(ShearStrategy)
    made.args = Section(ds=Section(zero_stage=2, tensor_parallel_size=1))
    monkeypatch.setattr("openrlhf.utils.deepspeed.deepspeed.torch_dist_barrier_and_cuda_sync", lambda: None)
    return made


@pytest.mark.parametrize("tied", [True, False])
def test_size_dtype_and_mode_are_those_of_the_model_it_began_with(strategy, tmp_path, tied):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = build_tokenizer()
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=2, tie_word_embeddings=tied, **shape)
    before = os.umask(0o027)
    try:
        seeded(Qwen2ForCausalLM, config, 0).bfloat16().save_pretrained(tmp_path / "base")
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.bfloat16)
        strategy.save_model(Section(module=model), tokenizer, str(tmp_path / "saved"))
    finally:
        os.umask(before)
    base, saved = tmp_path / "base/model.safetensors", tmp_path / "saved/model.safetensors"
    assert saved.stat().st_size == base.stat().st_size
    assert {oct(file.stat().st_mode & 0o777) for file in saved.parent.iterdir()} == {"0o640"}
    again = AutoModelForCausalLM.from_pretrained(saved.parent)
    assert again.dtype == torch.bfloat16 and again.config.tie_word_embeddings is tied
    weights = model.state_dict()  # whole again: engines are sent the head under its own name
    assert "lm_head.weight" in weights and weights.keys() == again.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in again.state_dict().items())
