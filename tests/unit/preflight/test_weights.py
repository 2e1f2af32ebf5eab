"""Model folders that cannot be loaded, or would be loaded wrongly without an error: each is refused in a sentence."""

import json
import re
import shutil
import struct

import pytest
import torch
from command_lines import refusal
from safetensors.torch import load_file, save_file

from openrlhf_shear.preflight import models
from openrlhf_shear.preflight.architecture import against_architecture
from openrlhf_shear.preflight.models import broken, read_model
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR

FLAG = "actor.model_name_or_path"


@pytest.fixture
def folder(tmp_path):
    """A copy of the shipped policy."""
    return shutil.copytree(POLICY_DIR, tmp_path / "policy")


def refusals(folder):
    """What the command refuses or, if that is nothing, what the job refuses before it starts Ray."""
    found = [*broken(FLAG, str(folder), json.loads((folder / "config.json").read_text()))]
    return [str(each) for each in found or against_architecture(read_model(FLAG, str(folder)))]


def weights(change):
    def act(folder):
        tensors = load_file(folder / "model.safetensors")
        save_file(change(tensors) or tensors, folder / "model.safetensors", {"format": "pt"})

    return act


def config(**values):
    def act(folder):
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return act


def cut(share):
    def act(folder):
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])

    return act


def pointer(folder):
    (folder / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1300000\n"
    )


def shards(*, written):
    def act(folder):
        tensors = load_file(folder / "model.safetensors")
        names = sorted(tensors)
        parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
        for file, own in parts.items():
            if file in written:
                save_file({name: tensors[name] for name in own}, folder / file)
        index = {"weight_map": {name: file for file, own in parts.items() for name in own}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        (folder / "model.safetensors").unlink()

    return act


def embedding(tensors):
    return {name: value[:-3] if "embed_tokens" in name else value for name, value in tensors.items()}


def not_a_number(tensors):
    next(value for name, value in tensors.items() if name.endswith("norm.weight"))[0] = torch.nan
    first = min(tensors)
    tensors[first].view(-1)[0] = torch.nan


def without_tokenizer(folder):
    (folder / "tokenizer.json").unlink()


def ends_outside(folder):
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"] = {name: at + 500 for name, at in content["model"]["vocab"].items()}
    for token in content["added_tokens"]:
        token["id"] += 500
    file.write_text(json.dumps(content))


def header(text):
    def act(folder):
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)

    return act


BROKEN = {
    "a pointer of git-lfs": (pointer, "is only a pointer of git-lfs; use git lfs pull"),
    "half": (cut(0.5), "is cut off: it has"),
    "empty": (cut(0), "is cut off: it has 0 bytes"),
    "the header alone": (cut(0.001), "is cut off"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "there is neither model.safetensors nor"),
    "a shard missing": (shards(written=["a.safetensors"]), "b.safetensors is missing"),
    "an index of something else": (
        lambda folder: (folder / "model.safetensors.index.json").write_text("[]"),
        "index.json is invalid",
    ),
    "a header of something else": (header(b"[1, 2]"), "has an invalid header"),
    "names of DDP": (
        weights(lambda tensors: {f"module.{name}": value for name, value in tensors.items()}),
        r"has weights with a wrapper's prefix, such as module\.model\.",
    ),
    "names of something else": (
        weights(lambda tensors: {name.replace("mlp", "ffn"): value for name, value in tensors.items()}),
        r"lacks \d+ of \d+ weights, which would be random: .*mlp.*; it has others, such as .*ffn",
    ),
    "more layers than weights": (config(num_hidden_layers=9, layer_types=None), "and config.json says 9: the others"),
    "a wider model": (config(intermediate_size=999), "weights of another shape"),
    "a small vocabulary": (weights(embedding), "has an embedding of the shape"),
    "not a number": (weights(not_a_number), "weights that are not finite"),
    "quantised": (config(quantization_config={"quant_method": "gptq"}), "is a quantised model"),
    "an unknown kind": (config(model_type="qwen77"), "unknown model_type, qwen77"),
    "no kind": (config(model_type=None), "unknown model_type, None"),
    "T5": (config(model_type="t5", architectures=["T5ForConditionalGeneration"]), "is an encoder"),
    "BERT": (config(model_type="bert", architectures=["BertForMaskedLM"]), "BertForMaskedLM, which generates no text"),
    "BERT without a head": (config(model_type="bert", architectures=["BertModel"]), r"is an encoder \(bert\)"),
    "a reward model": (
        config(architectures=["Qwen2ForSequenceClassification"]),
        "is a Qwen2ForSequenceClassification, which generates no text",
    ),
    "no tokenizer.json": (without_tokenizer, "has a tokenizer without a vocabulary: none of tokenizer.json"),
    "ids outside of the embedding": (ends_outside, "has token ids up to"),
}


@pytest.mark.parametrize(("damage", "told"), BROKEN.values(), ids=BROKEN)
def test_a_broken_folder_is_refused_in_a_sentence(folder, damage, told):
    damage(folder)
    found = refusals(folder)
    assert found and all("\n" not in each for each in found)
    assert any(re.search(told, each) for each in found), found


SOUND = {
    "as shipped": lambda folder: None,
    "in shards": shards(written=["a.safetensors", "b.safetensors"]),
    "without its head's prefix": weights(
        lambda tensors: {name.removeprefix("model."): value for name, value in tensors.items() if "lm_head" not in name}
    ),
    "with a buffer of an older version": weights(
        lambda tensors: tensors | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    ),
}


@pytest.mark.parametrize("change", SOUND.values(), ids=SOUND)
def test_a_sound_folder_passes(folder, change):
    change(folder)
    assert refusals(folder) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.bfloat16])
def test_samples_are_read_in_each_precision(folder, dtype):
    weights(lambda tensors: {name: value.to(dtype) for name, value in tensors.items()})(folder)
    assert refusals(folder) == []
    weights(lambda tensors: {name: value * torch.inf for name, value in tensors.items()})(folder)
    assert any("not finite" in each for each in refusals(folder))


def test_the_command_refuses_a_broken_folder_before_anything_starts(job, folder, monkeypatch, capsys):
    monkeypatch.setattr(models, "broken", broken)
    cut(0.5)(folder)
    assert "model.safetensors is cut off" in refusal(capsys, job(f"GRPO --actor.model_name_or_path {folder}"))
