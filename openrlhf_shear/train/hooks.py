"""List of all monkey patches: every name of OpenRLHF, or of a package below it, that this fork replaces.

First come the patches of a run on GPUs, which are the thin fork, then those of the CPU profile. `why` says what is
wrong without the patch, and why no subclass and no option of upstream replaces it.

No other file replaces a name of another package: code that needs to calls the `Patch` here. A place that upstream no
longer has raises an error at once. `ON_OBJECTS` only lists places, which code elsewhere sets;
`tests/unit/train/test_contract.py` compares them with that code. `kernels.bfloat16` registers torch's operators anew,
and `cpu.torchvision_names` defines two of torchvision's. `tests/data/contract` lists functions that are overridden in a
subclass, or only called. `credit/` only observes upstream's modules (`Actor`, `PolicyLoss`, the LM head) by torch's
forward hooks, which are removed after the pass or the update (`credit.captured`, `credit.apply`).
"""

import importlib
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Patch:
    """Replacement of an upstream name: its place, the new value in words, and the reason."""

    place: str  # "module:name" or "module:Class.name"; "module:mapping[key]" for an entry
    by: str  # the new value
    why: str  # what would be wrong or missing without the patch
    optional: bool = False  # whether upstream may lack the place

    def put(self, value: object) -> None:
        """Put `value` in the place, until the process ends.

        Raises:
            RuntimeError: upstream has no such place.
        """
        owner, name = self._owner()
        there = name in owner if isinstance(owner, MutableMapping) else hasattr(owner, name)
        if not there and not self.optional:
            raise RuntimeError(f"there is no {self.place} to replace by {self.by}: another version than the fork knows")
        if isinstance(owner, MutableMapping):
            owner[name] = value
        else:
            setattr(owner, name, value)

    def get(self) -> object:
        """Return the current value."""
        owner, name = self._owner()
        return owner[name] if isinstance(owner, MutableMapping) else getattr(owner, name)

    @contextmanager
    def held(self, value: object) -> Iterator[object]:
        """Put `value` in the place inside the context; yield the former value, and restore it at the end."""
        before = self.get()
        self.put(value)
        try:
            yield before
        finally:
            self.put(before)

    def _owner(self) -> tuple[object, str]:
        module, _, path = self.place.partition(":")
        path, _, key = path.removesuffix("]").partition("[")
        *owners, name = path.split(".")
        owner: object = importlib.import_module(module)
        for part in owners:
            owner = getattr(owner, part)
        return (getattr(owner, name), key) if key else (owner, name)


# ── A run on GPUs ──

# OpenRLHF's main makes these classes by name; a subclass acts only in their place (launch.install_hooks).

POLICY = Patch(
    "openrlhf.trainer.ray.ppo_actor:PolicyModelActor",
    "actor.ShearPolicyActor",
    "credit rules run where the hidden states are, and only weights travel",
)
ACTOR_GROUP = Patch(
    "openrlhf.trainer.ray.launcher:RayActorGroup",
    "states.ShearActorGroup",
    "hidden states are handed out as references, and a process reward model goes into the policy's placement group",
)
TRAINER = Patch(
    "openrlhf.trainer.ppo_trainer:PPOTrainer",
    "trainer_actor.TrainerActor",
    "upstream's loop has no accounts, no exact resume, no seed for its prompts, and ends when a logger fails",
)
ASYNC_TRAINER = Patch(
    "openrlhf.trainer.ppo_trainer_async:PPOTrainerAsync",
    "trainer_actor.TrainerActor",
    "upstream's keeps no accounts, and loses queued rollouts when a run is killed; ours is the synchronous trainer too",
)
ENGINE = Patch(
    "openrlhf.trainer.ray.vllm_engine:RolloutRayActor",
    "engine.RewardRolloutActor",
    "rewards are graded outside the engine's process, and a failed reward costs only its rollout",
)
STRATEGY = Patch(
    "openrlhf.utils.deepspeed:DeepspeedStrategy",
    "strategy.ShearStrategy",
    "ZeRO-3 loads rotary frequencies in bfloat16, and upstream deletes old checkpoints before it writes the new one",
)
ACTOR = Patch(
    "openrlhf.trainer.ray.ppo_actor:Actor",
    "losses.ChunkedActor, with --actor.logits_chunk, while the policy loads",
    "float32 logits of a pass and their gradients are half of a GPU's memory at 32k tokens; upstream's actor makes its "
    "model by this name",
)
CRITIC = Patch(
    "openrlhf.trainer.ray.ppo_critic:CriticModelActor",
    "actor.ShearCriticActor",
    "a resumed run shuffles as the first run would have, and means leave out fillers",
)

# Functions that other packages call by name, in a process that the fork does not construct.

ENGINE_CORE = Patch(
    "vllm.v1.engine.core:EngineCoreProc.run_engine_core",
    "worker.run_engine_core",
    "vLLM's core outlives a killed actor and keeps the GPU's memory; vLLM starts it by this name, without an option",
)
STORE = Patch(
    "torch.distributed.rendezvous:_create_c10d_store",
    "worker.keep_stores_there: upstream's function, whose stores for loopback listen only there, at a held port",
    "torch's stores listen on every address, without authentication; torch has no option for address or socket",
)
NODE_ADDRESS = Patch(
    "ray._private.services:resolve_ip_for_localhost",
    "own_ray.start: the address that was asked for",
    "Ray turns 127.0.0.1 into this machine's network address, and then listens on every address",
)
NODE = Patch(
    "ray._private.node:Node",
    "own_ray.start: patient_node.PatientNode",
    "Ray gives up after 15 and 30 s of its start, which a busy machine needs",
)
GATHERED = Patch(
    "deepspeed.runtime.zero:GatheredParameters",
    "lora.merged: upstream's context, in which base weights include their adapters",
    "vLLM and saved models need merged weights; upstream reads each weight inside this context, in a method's middle",
)

# Attributes of single objects, which upstream's constructors or methods make without asking for a class.

ON_OBJECTS = (
    Patch(
        "openrlhf.trainer.ray.vllm_engine:RolloutRayActor().llm",
        "engine: Watched, which wraps it",
        "a call to a dead core never returns, and requests start in the order of their arrival",
    ),
    Patch(
        "openrlhf.trainer.ray.ppo_actor:ActorPPOTrainer().training_step",
        "update: upstream's method, watched during an update",
        "with dynamic batches DeepSpeed must know where an optimizer step ends; the accounts count applied steps; "
        "upstream's actor makes its trainer by name",
    ),
    Patch(
        "deepspeed.runtime.engine:DeepSpeedEngine().checkpoint_engine",
        "saveable: DeepSpeed's own, which notes what the disk refuses, during a save",
        "a rank that raised would leave the others at DeepSpeed's barriers; DeepSpeed chooses among its own engines",
    ),
    Patch(
        "peft:PeftModel().named_parameters",
        "lora.merged: the names of the model without adapters, temporarily",
        "upstream sends vLLM the model's parameter names, and vLLM refuses PEFT's names",
    ),
    Patch(
        "openrlhf.trainer.ray.ppo_critic:CriticPPOTrainer().training_step",
        "update: upstream's method, watched during an update",
        "the same as for the actor",
    ),
)

# ── The CPU profile: no option of OpenRLHF, DeepSpeed or torch takes CUDA out of their code ──

# On a machine without CUDA (cpu.backend.install in every process, CpuStrategy).

_NO_CUDA = "OpenRLHF calls it without checking for CUDA"
CUDA_DEVICE = Patch("torch.cuda:current_device", 'the device "cpu"', _NO_CUDA)
CUDA_CALLS = tuple(
    Patch(f"torch.cuda:{name}", "a function that does nothing", _NO_CUDA)
    for name in ("set_device", "synchronize", "empty_cache", "current_stream")
)
DEVICE_MESH = Patch(
    "openrlhf.utils.deepspeed.deepspeed:init_device_mesh",
    "CpuStrategy: torch's mesh, over gloo, while the ranks meet",
    'OpenRLHF requests a mesh of "cuda"',
)
FLASH_ATTN = {
    name: Patch(f"sys:modules[{name}]", "flash_attn_stand_in", "OpenRLHF imports it, and it needs CUDA", optional=True)
    for name in (
        *("flash_attn", "flash_attn.bert_padding", "flash_attn.utils", "flash_attn.utils.distributed"),
        "ring_flash_attn",
    )
}
RING_ATTENTION = Patch(
    "transformers.modeling_utils:ALL_ATTENTION_FUNCTIONS[sdpa]",
    "flash_attn_stand_in: attention over all ranks' keys and values",
    "on the CPU it runs instead of flash attention, which ring_flash_attn would replace",
)
SHM_OP = Patch(
    "deepspeed.ops:__compatible_ops__[deepspeed_shm_comm]",
    "False",
    "an all-reduce for tensor-parallel inference, which is never used here; its build needs the Python headers",
    optional=True,
)
BACKEND = Patch(
    "deepspeed.comm.comm:TorchBackend",
    "CpuStrategy: a subclass whose collectives are finished when they return, while the ranks meet",
    "DeepSpeed waits only for the last of several; gloo uses several threads, so ZeRO-3 weights become NaN",
)


def patches() -> list[Patch]:
    """Return all patches of this file."""
    alone = [value for value in globals().values() if isinstance(value, Patch)]
    return [*alone, *ON_OBJECTS, *CUDA_CALLS, *FLASH_ATTN.values()]
