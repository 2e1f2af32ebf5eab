"""Captured states and entropies of a forward pass are those of a plain Hugging Face pass, at the response tokens."""

import types

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from openrlhf_shear.credit.captured import captured_entropies, captured_lm_head_input, evaluating, response_states

SIZES = dict(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)
# fp32, 2 layers: padded and plain runs differ by the order of sums in attention only. Measured: below 1e-6.
TOLERANCE = 1e-5


def make_model(family: str) -> torch.nn.Module:
    torch.manual_seed(0)
    classes = {"qwen2": (Qwen2Config, Qwen2ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}
    config_class, model_class = classes[family]
    config = config_class(**SIZES, num_key_value_heads=2, tie_word_embeddings=True, attn_implementation="sdpa")
    return model_class(config).eval()


def rollouts():
    """Three rollouts (tokens, response mask over the tokens): single turn, two turns, empty response."""
    generator = torch.Generator().manual_seed(1)

    def tokens(n):
        return torch.randint(1, 50, (n,), generator=generator)

    return [
        (tokens(9), [0, 0, 0, 1, 1, 1, 1, 1, 1]),
        (tokens(12), [0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1]),
        (tokens(4), [0, 0, 0, 0]),
    ]


def pad(rows, side: str, value: int = 0) -> torch.Tensor:
    width = max(len(row) for row in rows)
    rows = [torch.as_tensor(row) for row in rows]
    pads = [((width - len(row), 0) if side == "left" else (0, width - len(row))) for row in rows]
    return torch.stack([torch.nn.functional.pad(row, p, value=value) for row, p in zip(rows, pads, strict=True)])


def plain_states(model, tokens, mask) -> torch.Tensor:
    """The states entering the LM head, from `output_hidden_states` of an unpadded forward, at the masked positions."""
    with torch.no_grad():
        output = model(tokens[None], output_hidden_states=True)
    return output.hidden_states[-1][0][torch.tensor(mask).bool()]


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("packed", [False, True])
def test_states_match_a_plain_forward(family, side, packed):
    model = make_model(family)
    attention = pad([[1] * len(tokens) for tokens, _ in rollouts()], side)
    action_mask = pad([mask for _, mask in rollouts()], side)[:, 1:]
    if packed:
        sequences = torch.cat([tokens for tokens, _ in rollouts()])[None]
        positions = torch.cat([torch.arange(len(tokens)) for tokens, _ in rollouts()])[None]
    else:
        sequences = pad([tokens for tokens, _ in rollouts()], side)
        positions = (attention.cumsum(-1) - 1).masked_fill(attention == 0, 1)
    with torch.no_grad(), captured_lm_head_input(model) as captured:
        model(sequences, attention_mask=None if packed else attention, position_ids=positions, use_cache=False)
    states = response_states(captured[0], attention, action_mask, packed)
    for state, (tokens, mask) in zip(states, rollouts(), strict=True):
        assert state.shape == (sum(mask), SIZES["hidden_size"])
        torch.testing.assert_close(state, plain_states(model, tokens, mask), atol=TOLERANCE, rtol=0)


def test_lora_adapters_are_part_of_the_captured_states():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(make_model("qwen2"), LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear"))
    torch.manual_seed(2)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zero at the start, which would make the adapters invisible
            torch.nn.init.normal_(parameter, std=0.1)
    tokens, mask = rollouts()[0]
    with torch.no_grad(), captured_lm_head_input(model) as captured:
        model(tokens[None])
    state = response_states(captured[0], torch.ones(1, 9), torch.tensor([mask[1:]]), packed=False)[0]
    torch.testing.assert_close(state, plain_states(model, tokens, mask), atol=TOLERANCE, rtol=0)
    with model.disable_adapter():
        assert not torch.allclose(state, plain_states(model, tokens, mask), atol=100 * TOLERANCE)


@pytest.mark.parametrize(("mask", "length", "positions"), [([0, 1, 1, 1], 5, [2, 3, 4]), ([1, 0, 1], 6, [3, 5])])
def test_a_state_is_that_of_the_token_itself_and_the_mask_is_aligned_to_the_right(mask, length, positions):
    hidden = torch.arange(float(length))[None, :, None]  # the state at position p is the number p
    states = response_states(hidden, torch.ones(1, length), torch.tensor([mask]), packed=False)
    assert states[0].flatten().tolist() == positions


def test_misfits_are_refused():
    attention = torch.tensor([[1, 1, 1, 0]])
    with pytest.raises(ValueError, match="given only some of the positions"):
        response_states(torch.zeros(1, 3, 2), attention, torch.tensor([[1, 1, 0]]), packed=False)
    with pytest.raises(ValueError, match="calls padding"):
        response_states(torch.zeros(1, 4, 2), attention, torch.tensor([[1, 1, 1]]), packed=False)


def test_model_without_lm_head_is_refused():
    with pytest.raises(ValueError, match="no LM head"), captured_lm_head_input(make_model("qwen2").model):
        pass


class Actor(torch.nn.Module):
    """Stands for OpenRLHF's: log-probs of the masked columns, and if asked its output, in it entropies if asked."""

    def forward(self, sequences, action_mask=None, return_output=False, return_entropy=False):
        log_probs, output = -sequences[:, -action_mask.shape[1] :] * action_mask, types.SimpleNamespace()
        if return_entropy:
            assert return_output
            output.entropy = 2 * sequences[:, :-1]
        return (log_probs, output) if return_output else log_probs


class Moded(torch.nn.Module):
    """As a transformers model with kernels from the hub: it loads kernels when its mode changes."""

    def __init__(self):
        super().__init__()
        self.head, self.frozen, self.kernels = torch.nn.Dropout(), torch.nn.Dropout(), "training"
        self.frozen.eval()

    def train(self, mode: bool = True):
        if mode != self.training:
            self.kernels = "training" if mode else "inference"
        return super().train(mode)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_comes_back_with_its_kernels_and_that_of_each_part(training):
    model = Moded().train(training)
    model.frozen.eval()
    before = [module.training for module in model.modules()]
    with evaluating(model):
        assert model.kernels == "inference" and not any(module.training for module in model.modules())
    assert model.kernels == ("training" if training else "inference")
    assert [module.training for module in model.modules()] == before


def test_entropies_are_captured_while_callers_get_log_probs():
    actor, mask = Actor(), torch.tensor([[1, 0], [1, 1]])
    first, second = (torch.rand(2, 4).requires_grad_() for _ in range(2))
    plain = actor(first, action_mask=mask)
    with captured_entropies(actor) as captured:
        found = [actor(first, action_mask=mask), actor(second, mask)]
    assert torch.equal(found[0], plain) and torch.equal(found[1], -second[:, -2:] * mask)
    assert [entropies.tolist() for entropies in captured] == [(2 * each[:, :-1]).tolist() for each in (first, second)]
    assert not any(entropies.requires_grad for entropies in captured)


def test_entropies_are_no_longer_asked_for_afterwards_whatever_happened():
    actor, mask = Actor(), torch.ones(1, 2)
    with pytest.raises(KeyError), captured_entropies(actor) as captured:
        raise KeyError
    assert torch.is_tensor(actor(torch.rand(1, 4), action_mask=mask)) and captured == []
    log_probs, output = actor(torch.rand(1, 4), action_mask=mask, return_output=True)
    assert torch.is_tensor(log_probs) and not hasattr(output, "entropy")
