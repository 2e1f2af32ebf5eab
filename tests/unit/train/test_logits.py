"""Log-probs in chunks (`--actor.logits_chunk`) are upstream's, with its gradients, in a fraction of the memory.

`benchmarks/gradient_rows.yaml` has them in whole updates: packed, in a ring, under ZeRO-3, with adapters.
"""

import weakref

import openrlhf_on_cpu  # noqa: F401
import pytest
import torch
from openrlhf.models import Actor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

from openrlhf_shear.train.screen.outcome import RefusedError
from openrlhf_shear.train.update.losses import ChunkedActor

TEMPERATURE = 1.7
HOW = {"attn_implementation": "sdpa", "param_dtype": "bf16", "temperature": TEMPERATURE}


def saved(folder, vocabulary: int = 61, tied: bool = False, **others) -> str:
    torch.manual_seed(0)
    sizes = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
    config = LlamaConfig(vocab_size=vocabulary, tie_word_embeddings=tied, **sizes, **others)
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def batch(rows: int, length: int, vocabulary: int = 61) -> dict[str, torch.Tensor]:
    """Sequences of several lengths, padded on the right; the first token is the prompt."""
    generator = torch.Generator().manual_seed(1)
    attended = torch.arange(length) < torch.tensor([length - 2 * row for row in range(rows)])[:, None]
    sequences = torch.randint(0, vocabulary, (rows, length), generator=generator) * attended
    return {"sequences": sequences, "action_mask": attended[:, 1:].long(), "attention_mask": attended.long()}


def gradients(actor: Actor, inputs: dict, entropies: bool) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Return log-probs and entropies, and the gradients of a sum of both with weights."""
    actor.zero_grad()
    log_probs, output = actor(**inputs, return_output=True, return_entropy=entropies)
    found = [log_probs, *([output.entropy * inputs["action_mask"]] if entropies else [])]
    weights = torch.rand(found[0].shape, generator=torch.Generator().manual_seed(2))
    sum((each * weights * (1 + k)).sum() for k, each in enumerate(found)).backward()
    return [each.detach() for each in found], {name: p.grad.clone() for name, p in actor.named_parameters()}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("entropies", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_log_probs_entropies_and_gradients_are_those_of_upstream(tmp_path, packed, entropies, tied):
    folder, inputs = saved(tmp_path, tied=tied), batch(3, 13)
    plain, chunked = (
        Actor(folder, **HOW, packing_samples=packed),
        ChunkedActor(5, folder, **HOW, packing_samples=packed),
    )
    expected, slopes = gradients(plain.float(), inputs, entropies)
    found, own = gradients(chunked.float(), inputs, entropies)
    assert len(found) == 1 + entropies and own.keys() == slopes.keys()
    for each, other in zip(found, expected, strict=True):
        torch.testing.assert_close(each, other, rtol=0, atol=1e-6)
    for name in slopes:
        torch.testing.assert_close(own[name], slopes[name], rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        assert torch.equal(chunked(**inputs), found[0])


def test_log_probs_are_those_of_float64(tmp_path):
    folder, inputs = saved(tmp_path), batch(3, 13)
    found, slopes = gradients(ChunkedActor(4, folder, **HOW).float(), inputs, entropies=False)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).double()
    logits = model(inputs["sequences"], attention_mask=inputs["attention_mask"]).logits[:, :-1] / TEMPERATURE
    exact = logits.log_softmax(-1).gather(2, inputs["sequences"][:, 1:, None])[..., 0] * inputs["action_mask"]
    (exact * torch.rand(exact.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
    torch.testing.assert_close(found[0].double(), exact.detach(), rtol=0, atol=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(slopes[f"model.{name}"].double(), parameter.grad, rtol=1e-3, atol=1e-5)


def test_a_head_whose_product_is_not_the_logits_is_refused(tmp_path):
    with pytest.raises(RefusedError, match=r"--actor.logits_chunk makes logits from the LM head: logit_scale of"):
        ChunkedActor(4, saved(tmp_path, logit_scale=0.5), **HOW)
    adapted = {"lora_rank": 2, "target_modules": ["lm_head"]}
    with pytest.raises(RefusedError, match=r"the LM head is a peft.*; leave it without adapters"):
        ChunkedActor(4, saved(tmp_path), **HOW, **adapted)


class Peak(TorchDispatchMode):
    """Largest number of bytes that tensors made inside the context take at the same time."""

    def __init__(self):
        super().__init__()
        self.seen, self.now, self.most = set(), 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **kwargs or {})
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage())
        return made

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.seen:
            return
        self.seen.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.now -= size


def peak(actor: Actor, inputs: dict) -> int:
    with Peak() as bytes_of:
        actor(**inputs).sum().backward()
    return bytes_of.most


def test_an_update_takes_the_memory_of_a_chunk(tmp_path):
    """512 tokens with a vocabulary of 20,000: logits and their gradients of 32 tokens in place of all."""
    folder, inputs, tokens, vocabulary = saved(tmp_path, vocabulary=20_000), batch(1, 512, 20_000), 512, 20_000
    plain, chunked = Actor(folder, **HOW), ChunkedActor(32, folder, **HOW)
    logits, head = 10 * tokens * vocabulary, 2 * 16 * vocabulary
    assert peak(plain, inputs) > 0.9 * logits
    assert peak(chunked, inputs) < 1.5 * (logits / 16) + 6 * head
