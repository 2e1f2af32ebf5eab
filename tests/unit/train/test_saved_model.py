"""A model that training saves has the size, dtype and file mode of the model that it began with."""

import json
import os
from types import SimpleNamespace as Section

import openrlhf_on_cpu  # noqa: F401
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from openrlhf_shear.tasks.arithmetic.policy import build_tokenizer, seeded
from openrlhf_shear.train.checkpoints.saveable import refuse_unsaveable
from openrlhf_shear.train.screen.outcome import RefusedError
from openrlhf_shear.train.update.strategy import ShearStrategy


@pytest.fixture
def strategy(monkeypatch):
    made = ShearStrategy.__new__(ShearStrategy)
    made.args = Section(ds=Section(zero_stage=2, tensor_parallel_size=1))
    made.stage, made.ds_tensor_parallel_size = 2, 1
    monkeypatch.setattr("openrlhf.utils.deepspeed.deepspeed.torch_dist_barrier_and_cuda_sync", lambda: None)
    return made


def random_model(tied: bool = False) -> Qwen2ForCausalLM:
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    vocabulary = len(build_tokenizer())
    config = Qwen2Config(vocab_size=vocabulary, num_key_value_heads=2, tie_word_embeddings=tied, **shape)
    return seeded(Qwen2ForCausalLM, config, 0)


@pytest.mark.parametrize("tied", [True, False])
def test_size_dtype_and_mode_are_those_of_the_model_it_began_with(strategy, tmp_path, tied):
    before = os.umask(0o027)
    try:
        random_model(tied).bfloat16().save_pretrained(tmp_path / "base")
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.bfloat16)
        strategy.save_model(Section(module=model), build_tokenizer(), str(tmp_path / "saved"))
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


BROKEN = {  # what transformers reads of a file and refuses to write, and the file
    "beams without num_beams": ({"length_penalty": 2.0}, "generation_config.json"),
    "no padding": ({"pad_token_id": -1}, "generation_config.json"),
    "scores that nobody gets": ({"output_scores": True}, "generation_config.json"),
}


def small_policy(folder, generation: dict, adapters: bool = False):
    """A saved model with a generation_config.json, loaded again as training does."""
    from peft import LoraConfig, get_peft_model

    random_model().save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(generation))
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = build_tokenizer()
    return (get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"])) if adapters else model), tokenizer


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("said", [{}, {"do_sample": False}])
@pytest.mark.parametrize("flags", [{"temperature": 0.6, "top_p": 0.9}, {"top_k": 20}, {"min_p": 0.1}])
def test_sampling_flags_without_do_sample_are_saved_as_those_of_sampling(strategy, tmp_path, flags, said, adapters):
    model, tokenizer = small_policy(tmp_path / "base", flags | said, adapters)
    strategy.save_model(Section(module=model), tokenizer, str(tmp_path / "saved"))
    saved = json.loads((tmp_path / "saved/generation_config.json").read_text())
    assert saved["do_sample"] is True and flags.items() <= saved.items()
    assert (tmp_path / "saved/model.safetensors").is_file()


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_saved_is_refused_before_the_first_step(tmp_path, case, adapters):
    generation, file = BROKEN[case]
    model, tokenizer = small_policy(tmp_path / "base", generation, adapters)
    with pytest.raises(RefusedError) as raised:
        refuse_unsaveable("--actor.model_name_or_path", model, tokenizer)
    (flag,) = generation
    assert f"--actor.model_name_or_path has a {file} that can be loaded and cannot be saved" in str(raised.value)
    assert f"`{flag}`" in str(raised.value) and "\n" not in str(raised.value)


def test_the_configuration_and_the_tokenizer_are_tried_too_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tried"))
    (tmp_path / "tried").mkdir()
    model, tokenizer = small_policy(tmp_path / "base", {})
    refuse_unsaveable("--actor.model_name_or_path", model, tokenizer)
    tokenizer.init_kwargs["padding"] = object()  # as some tokenizers with custom code
    with pytest.raises(RefusedError, match="has a tokenizer that can be loaded and cannot be saved"):
        refuse_unsaveable("--actor.model_name_or_path", model, tokenizer)
    model.config.num_beams = 4  # as older models have it in their config.json
    with pytest.raises(RefusedError, match=r"has a config\.json .* Generation parameters found: {'num_beams': 4}"):
        refuse_unsaveable("--actor.model_name_or_path", model, build_tokenizer())
    assert not list((tmp_path / "tried").iterdir())


def test_a_policy_asks_as_soon_as_it_is_loaded(tmp_path, monkeypatch):
    from openrlhf_shear.train.update.actor import ShearPolicyActor

    model, tokenizer = small_policy(tmp_path / "base", {"length_penalty": 2.0})

    def loaded(self, *_):
        self.actor, self.tokenizer = Section(model=Section(module=model), is_vlm=False), tokenizer

    monkeypatch.setattr(ShearPolicyActor.__bases__[-1], "init_model_from_pretrained", loaded)
    strategy = Section(args=Section(credit=None, actor=Section(logits_chunk=0)))
    with pytest.raises(RefusedError, match="cannot be saved"):
        ShearPolicyActor.init_model_from_pretrained(ShearPolicyActor.__new__(ShearPolicyActor), strategy, "base")
