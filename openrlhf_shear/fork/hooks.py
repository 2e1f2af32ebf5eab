"""Every place where this fork puts its own value under a name of OpenRLHF, or of a package below it.

Nothing else sets a name of another package: whoever replaces one asks the `Patch` here to do it, and a place that
upstream no longer has is an error there and then. `ON_OBJECTS` and `OPERATORS` only tell of places, because the code
that sets them stands elsewhere; `tests/unit/test_contract.py` compares them with that code. What is overridden in a
subclass, or only called, is in `contract.json`. `credit/` only listens to upstream's modules (`Actor`, `PolicyLoss`,
the LM head), by torch's forward hooks, which go at the end of the pass or the update: `hidden_states`, `entropies`,
`in_update`.
"""

import importlib
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Patch:
    """One replaced name."""

    place: str  # "module:name" or "module:Class.name"; "module:mapping[key]" for an entry
    by: str  # what stands there then
    why: str  # what would go wrong, or be missing, without it
    optional: bool = False  # upstream may have nothing there

    def put(self, value: object) -> None:
        """Put `value` in the place, for as long as the process lives.

        Raises:
            RuntimeError: there is no such place.
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
        """What stands there now."""
        owner, name = self._owner()
        return owner[name] if isinstance(owner, MutableMapping) else getattr(owner, name)

    @contextmanager
    def held(self, value: object) -> Iterator[object]:
        """Put `value` there for a while; yields what stood there before, and puts it back."""
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
        for one in owners:
            owner = getattr(owner, one)
        return (getattr(owner, name), key) if key else (owner, name)


# ── Before OpenRLHF's main imports them: its classes (launch.install_hooks) ──

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
    "trainer.ShearTrainer",
    "the experience maker that weighs, the ledger, benchmarks during training, rollouts written to disk",
)
ASYNC_TRAINER = Patch(
    "openrlhf.trainer.ppo_trainer_async:PPOTrainerAsync",
    "trainer.ShearTrainer",
    "upstream's knows no ledger, and of a run that is killed it loses what is queued; this one is the same trainer",
)
ENGINE = Patch(
    "openrlhf.trainer.ray.vllm_engine:RolloutRayActor",
    "engine.RewardRolloutActor",
    "rewards are graded outside the engine's process, and one that fails costs its rollout alone",
)
STRATEGY = Patch(
    "openrlhf.utils.deepspeed:DeepspeedStrategy",
    "strategy.ShearStrategy",
    "ZeRO-3 loads rotary frequencies in bfloat16, and old checkpoints go before the new one is written",
)
CRITIC = Patch(
    "openrlhf.trainer.ray.ppo_critic:CriticModelActor",
    "critic.ShearCriticActor",
    "a resumed run shuffles as the run before, and fillers count in no mean",
)

# ── In a rollout engine's actor, and in vLLM's core below it (engine_process) ──

ENGINE_CORE = Patch(
    "vllm.v1.engine.core:EngineCoreProc.run_engine_core",
    "engine_process.run_engine_core",
    "vLLM's core outlives a killed actor, and keeps the GPU's memory",
)

# ── In every process of a Ray that a run starts, and in vLLM's core (loopback) ──

STORE = Patch(
    "torch.distributed.rendezvous:_create_c10d_store",
    "loopback.keep_stores_there: the same, listening on loopback where it is asked for there",
    "torch's listens on every address, and asks nobody who he is",
)

# ── For a while ──

NODE_ADDRESS = Patch(
    "ray._private.services:resolve_ip_for_localhost",
    "own_ray.start: the address that was asked for",
    "Ray makes this machine's address on the network of 127.0.0.1, and then listens on every address",
)

PARSER = Patch(
    "argparse:ArgumentParser",
    "launch.run_main: a parser that has parsed",
    "OpenRLHF's main parses under `if __name__`, and knows no flag of the fork",
)
DATA = Patch(
    "openrlhf.trainer.ppo_trainer:prepare_datasets",
    "prompt_data.prepare_datasets",
    "upstream's gives labels other types than the file, takes <image> from a text model's prompt, and knows no BOS",
)
WANDB = Patch(
    "openrlhf.trainer.ppo_trainer:WandbLogger",
    "tracking: curves.Curves of it",
    "a network or a service that fails ends the run",
)
TENSORBOARD = Patch(
    "openrlhf.trainer.ppo_trainer:TensorboardLogger",
    "tracking: curves.Curves of it",
    "a disk that is full ends the run",
)
LENGTH_PENALTIES = Patch(
    "openrlhf.trainer.ppo_utils.experience_maker:apply_length_penalties",
    "graded_experience: nothing is done",
    "shaping.shape_rewards has done it, for lengths without a tool's words, and by what the prompt leaves of max_len",
)
TOKEN_REWARDS = Patch(
    "openrlhf.trainer.ppo_utils.experience_maker:compute_reward",
    "shaping.token_rewards",
    "upstream clips what a baseline leaves of rewards, and adds the KL of the prompt's tokens to the return",
)
GATHERED = Patch(
    "deepspeed.runtime.zero:GatheredParameters",
    "lora.merged: the same, where a base weight comes with its adapters in it",
    "vLLM and saved models take merged weights, and upstream reads each one in there",
)

# ── Attributes that a subclass of ours sets anew after upstream's constructor, and a method of one object ──

_OWN_CLASS = "upstream's constructor names its own class"
_REWARDS = "upstream asks for a reward where one of them is set"
_TRAINER = "openrlhf.trainer.ppo_trainer:PPOTrainer()"
ON_OBJECTS = (
    Patch(f"{_TRAINER}.experience_maker", "trainer: CreditExperienceMaker or GradedExperienceMaker", _OWN_CLASS),
    Patch(f"{_TRAINER}.samples_generator", "trainer: LedgerSamplesGenerator", _OWN_CLASS),
    Patch(
        f"{_TRAINER}.eval_dataloader",
        "trainer: a line that says there is none, with --eval.suite alone",
        "upstream evaluates only if there are evaluation prompts",
    ),
    Patch(
        f"{_TRAINER}.prompts_dataloader",
        "trainer: the same, in an order that the seed decides",
        "upstream's order is seeded by nothing",
    ),
    Patch(
        f"{_TRAINER}.max_steps",
        "trainer: with the last, smaller batch of an episode",
        "upstream's schedule of the learning rate ends too early",
    ),
    Patch("openrlhf.trainer.ray.vllm_engine:RolloutRayActor().executor", "engine: RewardExecutor", _OWN_CLASS),
    Patch(
        "openrlhf.trainer.ray.vllm_engine:RolloutRayActor().llm",
        "engine: Watched, which holds it",
        "a call that awaits a dead core never returns, and requests start in the order of their arrival",
    ),
    Patch(
        "openrlhf.utils.agent:SingleTurnAgentExecutor().reward_endpoints",
        "engine: the address or the file of rewards",
        _REWARDS,
    ),
    Patch(
        "openrlhf.utils.agent:SingleTurnAgentExecutor().reward_func",
        "engine: the pool that grades",
        _REWARDS,
    ),
    Patch(
        "openrlhf.utils.logging_utils:TensorboardLogger().writer",
        "tracking: a writer that hides the steps which a resumed run does again",
        "upstream's writer shows the steps of both attempts",
    ),
    Patch(
        "openrlhf.trainer.ray.ppo_actor:ActorPPOTrainer().training_step",
        "update: the same, watched, during an update",
        "with dynamic batches DeepSpeed must be told where an optimizer step ends; the ledger counts what was applied",
    ),
    Patch(
        "peft:PeftModel().named_parameters",
        "lora.merged: those of the model without adapters, for a while",
        "upstream sends vLLM the names that are there, and it knows none of PEFT's",
    ),
    Patch(
        "openrlhf.trainer.ray.ppo_critic:CriticPPOTrainer().training_step",
        "update: the same, watched, during an update",
        "as the actor's",
    ),
)

# ── On CPUs without instructions for bfloat16 (kernels.bfloat16) ──

_SLOW = "torch takes some ten times as long for bfloat16 there as for float32"
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
OPERATORS = tuple(
    Patch(f"torch:ops.aten.{name}", "kernels.bfloat16: the same, computed in float32 and rounded", _SLOW)
    for name in (*("mm", "addmm", "bmm", "baddbmm"), _ATTENTION, f"{_ATTENTION}_backward")
)

# ── On a machine without CUDA only (cpu_backend.install in every process, CpuStrategy) ──

_NO_CUDA = "OpenRLHF calls it without asking whether there is CUDA"
CUDA_DEVICE = Patch("torch.cuda:current_device", 'the device "cpu"', _NO_CUDA)
CUDA_CALLS = tuple(
    Patch(f"torch.cuda:{name}", "nothing is done", _NO_CUDA)
    for name in ("set_device", "synchronize", "empty_cache", "current_stream")
)
DEVICE_MESH = tuple(
    Patch(f"{module}:init_device_mesh", "the same, over gloo", 'OpenRLHF asks for a mesh of "cuda"')
    for module in ("torch.distributed.device_mesh", "torch.distributed")
)
FLASH_ATTN = {
    name: Patch(f"sys:modules[{name}]", "flash_attn_stand_in", "OpenRLHF imports it, and it needs CUDA", optional=True)
    for name in ("flash_attn", "flash_attn.bert_padding", "flash_attn.utils", "flash_attn.utils.distributed")
}
RING_FLASH_ATTN = Patch(
    "sys:modules[ring_flash_attn]", "ring_flash_attn_stand_in", "as flash_attn, for ring attention", optional=True
)
RING_ATTENTION = Patch(
    "transformers.modeling_utils:ALL_ATTENTION_FUNCTIONS[sdpa]",
    "ring_flash_attn_stand_in: the same, of all ranks' keys and values",
    "on the CPU it runs in flash attention's place, which ring_flash_attn replaces",
)
SHM_OP = Patch(
    "deepspeed.ops:__compatible_ops__[deepspeed_shm_comm]",
    "False",
    "an all-reduce for tensor-parallel inference: never used here, and its build needs the Python headers",
    optional=True,
)
COLLECTIVES = tuple(
    Patch(
        f"deepspeed.comm.torch:TorchBackend.{name}",
        "the same, finished when it returns",
        "DeepSpeed waits for the last of several; gloo runs them on several threads: NaN weights under ZeRO-3",
    )
    for name in (
        *("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "all_gather_base"),
        *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
    )
)
ALL_GATHER_COALESCED = Patch(
    "deepspeed.comm.torch:TorchBackend.all_gather_coalesced",
    "one all_gather_into_tensor after the other",
    "upstream's gathers past the calls above, and waits for the last alone",
)


def patches() -> list[Patch]:
    """All of them."""
    alone = [value for value in globals().values() if isinstance(value, Patch)]
    return [*alone, *ON_OBJECTS, *OPERATORS, *CUDA_CALLS, *DEVICE_MESH, *FLASH_ATTN.values(), *COLLECTIVES]
