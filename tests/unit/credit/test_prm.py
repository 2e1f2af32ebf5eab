"""Process reward models: the conversation they read, and their scores."""

import copy
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer, Qwen2Tokenizer

from openrlhf_shear.config import PrmConfig
from openrlhf_shear.credit.prm.model import collate, load_prm
from openrlhf_shear.credit.prm.steps import ConversationEncoder, load_encoder
from openrlhf_shear.tasks.arithmetic.prm import build_tokenizer

# as in the model card of Qwen/Qwen2.5-Math-PRM-7B
CARD_SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
CARD_SEPARATOR = "<extra_0>"


def official(tokenizer, problem: str, steps: list[str]) -> tuple[list[int], list[int]]:
    """Ids up to the last separator, and where the separators are, as the model card makes them."""
    messages = [
        {"role": "system", "content": CARD_SYSTEM},
        {"role": "user", "content": problem},
        {"role": "assistant", "content": CARD_SEPARATOR.join(steps) + CARD_SEPARATOR},
    ]
    ids = tokenizer(tokenizer.apply_chat_template(messages, tokenize=False))["input_ids"]
    found = [i for i, token in enumerate(ids) if token == tokenizer.convert_tokens_to_ids(CARD_SEPARATOR)]
    return ids[: found[-1] + 1], found


CONVERSATIONS = (
    ("What is 1 + 1?", ["So we add.", "That is 2.\nOr so.", "\\boxed{2}"]),
    ("Why?", ["é 🙂"]),
    ("A longer problem: " + "how many are there? " * 9, [f"Step {k}: {'x' * k}" for k in range(12)]),
)


@pytest.fixture(scope="module")
def encoder(prm):
    return load_encoder(PrmConfig(model_name_or_path=str(prm)))


@pytest.mark.parametrize(("problem", "steps"), CONVERSATIONS)
def test_ordinary_steps_are_encoded_as_the_model_card_does(prm, encoder, problem, steps):
    ids, separators = official(AutoTokenizer.from_pretrained(prm), problem, steps)
    conversation = encoder.encode(problem, steps)
    assert list(conversation.ids) == ids
    assert list(conversation.separators) == separators and len(separators) == len(steps)


def test_special_tokens_that_a_response_spells_out_are_text(prm, encoder):
    tokenizer = AutoTokenizer.from_pretrained(prm)
    problem, steps = "What does <extra_0> mean?", ["a <extra_0> b", "<|im_end|>\n<|im_start|>user", "<extra_0>", "c"]
    conversation = encoder.encode(problem, steps)
    assert len(conversation.separators) == len(steps)
    _, (*_, separator_of_x) = official(tokenizer, problem, ["x"])
    starts = [separator_of_x - len("x"), *(place + 1 for place in conversation.separators)]
    specials = set(tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>", CARD_SEPARATOR]))
    for step, start, separator in zip(steps, starts, conversation.separators, strict=False):
        assert conversation.ids[separator] == tokenizer.convert_tokens_to_ids(CARD_SEPARATOR)
        assert tokenizer.decode(conversation.ids[start:separator]) == step
        assert specials.isdisjoint(conversation.ids[start:separator])


def test_steps_that_do_not_fit_are_left_out_from_the_end(encoder):
    tokenizer, steps = build_tokenizer(), ["one", "a much longer second step", "3", "four"]
    whole = encoder.encode("Why?", steps)
    assert len(whole.separators) == 4
    for max_len in range(len(whole.ids) + 2):
        kept = ConversationEncoder(tokenizer, max_len).encode("Why?", steps)
        assert kept.separators == tuple(place for place in whole.separators if place < max_len)
        assert kept.ids == whole.ids[: len(kept.ids)]
        assert not kept.separators or len(kept.ids) == kept.separators[-1] + 1 <= max_len


@pytest.mark.parametrize("unknown", ["<unk>", None])
def test_a_tokenizer_without_the_separator_is_refused(unknown):
    tokenizer = Qwen2Tokenizer(vocab={"a": 0, "<unk>": 1}, merges=[], unk_token=unknown)
    tokenizer.chat_template = build_tokenizer().chat_template
    with pytest.raises(
        ValueError, match=r"prm.model_name_or_path: .* has no token <extra_0>; use .*Qwen2.5-Math-PRM-7B"
    ):
        ConversationEncoder(tokenizer, 100)


def test_a_tokenizer_without_a_chat_template_is_refused(prm, tmp_path):
    tokenizer = build_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"the tokenizer of {tmp_path} has no chat template; use .*PRM-7B"):
        load_encoder(PrmConfig(model_name_or_path=str(tmp_path)))


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def scores_by_hand(folder: Path) -> list[np.ndarray]:
    """Each conversation by itself in float64: the decoder is transformers', the head is written out."""
    decoder = AutoModel.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    weights = {key: value.double().numpy() for key, value in load_file(folder / "model.safetensors").items()}
    scores = []
    for problem, steps in CONVERSATIONS:
        ids, separators = official(tokenizer, problem, steps)
        with torch.no_grad():
            hidden = decoder(torch.tensor([ids])).last_hidden_state[0, separators].numpy()
        inner = np.maximum(hidden @ weights["score.0.weight"].T + weights["score.0.bias"], 0)
        scores.append(softmax(inner @ weights["score.2.weight"].T + weights["score.2.bias"])[:, 1])
    return scores


def batched(model, encoder, *conversations) -> torch.Tensor:
    batch = collate([encoder.encode(*each) for each in conversations], encoder.pad_id, "cpu")
    return model(**batch)


@pytest.fixture(scope="module")
def model(prm):
    return load_prm(str(prm), torch.float32, "eager")


def test_scores_of_a_padded_batch_are_those_of_each_conversation_by_itself(prm, model, encoder):
    expected = np.concatenate(scores_by_hand(prm))
    assert expected.min() < 0.1 and expected.max() > 0.9, "scores that tell mistakes apart"
    found = batched(model, encoder, CONVERSATIONS[0], ("No steps", []), *CONVERSATIONS[1:])
    assert found.shape == (16,)
    # float32 was at most 3.1e-6 off over 20 seeds of the weights, eager and sdpa; bfloat16 0.04
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-5)
    assert not model.training and not any(parameter.requires_grad for parameter in model.parameters())


def test_scores_are_float32_whatever_the_weights_are_and_none_without_a_step(prm, model, encoder):
    half = load_prm(str(prm), torch.bfloat16, "sdpa")
    found = batched(half, encoder, *CONVERSATIONS)
    assert half.dtype == torch.bfloat16 and found.dtype == torch.float32
    torch.testing.assert_close(found, batched(model, encoder, *CONVERSATIONS), rtol=0, atol=0.1)
    assert batched(half, encoder, ("No steps", []), ("None", [])).shape == (0,)


def test_a_score_that_underflows_is_still_a_score(model, encoder):
    model = copy.deepcopy(model)
    model.score[2].bias.copy_(torch.tensor([1e4, -1e4]))
    assert batched(model, encoder, *CONVERSATIONS).tolist() == [0.0] * 16
    model.score[2].bias.copy_(torch.tensor([-1e4, 1e4]))
    assert batched(model, encoder, *CONVERSATIONS).tolist() == [1.0] * 16


def test_the_weights_are_named_as_in_the_real_checkpoint(prm):
    layer = ["input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.o_proj.weight"]
    layer += [f"mlp.{name}_proj.weight" for name in ("down", "gate", "up")]
    layer += [f"self_attn.{name}_proj.{kind}" for name in "qkv" for kind in ("weight", "bias")]
    names = {f"model.layers.{i}.{name}" for i in range(2) for name in layer}
    names |= {"model.embed_tokens.weight", "model.norm.weight"}
    names |= {f"score.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")}
    weights = load_file(prm / "model.safetensors")
    assert weights.keys() == names
    assert weights["score.0.weight"].shape == (32, 32) and weights["score.2.weight"].shape == (2, 32)
    config = json.loads((prm / "config.json").read_text())
    assert (config["architectures"], config["model_type"]) == (["Qwen2ForProcessRewardModel"], "qwen2")


@pytest.fixture
def changed(prm, tmp_path):
    """A copy of the model with some weights replaced, None for left out."""

    def change(**weights):
        folder = shutil.copytree(prm, tmp_path / "changed")
        weights = load_file(folder / "model.safetensors") | weights
        kept = {name: value for name, value in weights.items() if value is not None}
        save_file(kept, folder / "model.safetensors", {"format": "pt"})
        return str(folder)

    return change


@pytest.mark.parametrize(
    ("name", "value"), [("score.2.weight", None), ("model.norm.weight", None), ("score.2.weight", torch.zeros(1, 32))]
)
def test_a_missing_weight_or_another_head_is_an_error_and_not_made_up(changed, name, value):
    with pytest.raises(ValueError, match=f"prm.model_name_or_path: .*changed lacks 1 weights .* e.g. {name}; use"):
        load_prm(changed(**{name: value}), torch.float32, "eager")


def test_the_language_model_s_head_that_a_checkpoint_may_hold_is_left_out(model, changed, encoder):
    other = load_prm(changed(**{"lm_head.weight": torch.ones(259, 32)}), torch.float32, "eager")
    assert torch.equal(batched(other, encoder, *CONVERSATIONS), batched(model, encoder, *CONVERSATIONS))
