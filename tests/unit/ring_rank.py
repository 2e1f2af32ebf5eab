"""One of several processes that share a tiny float32 policy over gloo: a ring, or DeepSpeed's tensor parallel layers.

`main` writes FOLDER/MODE_RANKS.pt with the first process's log-probs, entropies, states, and all weights before and
after a step of SGD. With one process it is the policy alone.
"""

import os
from pathlib import Path

import torch

from openrlhf_shear.train.cpu import backend as cpu_backend

cpu_backend.install()  # the modules below import OpenRLHF's

import deepspeed  # noqa: E402
from deepspeed.module_inject.layers import GatherReplacedLayerParams  # noqa: E402
from openrlhf.models import Actor  # noqa: E402
from openrlhf.models.ring_attn_utils import set_ring_attn_group  # noqa: E402
from transformers import Qwen2Config, Qwen2ForCausalLM  # noqa: E402

from openrlhf_shear.credit.captured import captured_lm_head_input, response_states  # noqa: E402
from openrlhf_shear.train import hooks  # noqa: E402
from openrlhf_shear.train.cpu.flash_attn_stand_in import substitute_hf_flash_attn  # noqa: E402
from openrlhf_shear.train.experience.states import of_ring  # noqa: E402

SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
LENGTHS = (9, 5, 12)  # 26 tokens: a ring of 3 pads one


def policy() -> Actor:
    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=50, num_key_value_heads=2, tie_word_embeddings=False, **SHAPE)
    config._attn_implementation, config.use_cache = "sdpa", False  # with a cache it sees no borders of sequences
    actor = Actor(Qwen2ForCausalLM(config))
    actor.packing_samples = True
    return actor


def engine(model: torch.nn.Module, parts: int):
    """DeepSpeed's, which averages gradients, with plain SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 0}}
    config |= {"tensor_parallel": {"autotp_size": parts}, "zero_allow_untested_optimizer": True}
    made, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return made


def whole_weights(model: torch.nn.Module) -> torch.Tensor:
    """All of them in a row, gathered as they are on their way to vLLM."""
    weights = []
    for parameter in model.parameters():
        with GatherReplacedLayerParams([parameter], model):
            weights.append(parameter.detach().flatten().clone())
    return torch.cat(weights)


def main(rank: int, ranks: int, mode: str, folder: Path) -> None:
    os.environ["LOCAL_RANK"] = "0"
    hooks.SHM_OP.put(False)  # as the CPU backend: it would be built
    meeting = f"file://{folder}/{mode}{ranks}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    ring = torch.distributed.group.WORLD if mode == "ring" and ranks > 1 else None
    if ring is not None:
        set_ring_attn_group(ring)
        substitute_hf_flash_attn(ring, 1)
    actor = policy()
    actor.model = engine(actor.model, ranks if mode == "tensor" else 1)
    attended = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    tokens = torch.randint(1, 50, attended.shape, generator=torch.Generator().manual_seed(1)) * attended
    actions = attended[:, 1:] * (torch.arange(1, max(LENGTHS)) > 2)
    with captured_lm_head_input(actor.model.module) as captured:
        found, output = actor(tokens, actions, attended, return_output=True, return_entropy=True, ring_attn_group=ring)
    states = response_states(of_ring(captured[0], ring, sum(LENGTHS)), attended, actions, packed=True)
    before = whole_weights(actor.model.module)
    actor.model.backward(-(found * torch.randn(found.shape, generator=torch.Generator().manual_seed(2))).sum())
    actor.model.step()
    seen = {"log_probs": found.detach(), "entropies": output.entropy.detach() * attended[:, :-1]}
    seen |= {"states": torch.cat(states), "before": before, "weights": whole_weights(actor.model.module)}
    if rank == 0:
        torch.save(seen, folder / f"{mode}_{ranks}.pt")
    torch.distributed.barrier()
