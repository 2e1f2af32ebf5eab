"""CPU backend, which lets OpenRLHF's CUDA code train on a machine without a GPU.

A CUDA machine never imports this file. `install` runs in the driver and, by Ray's `worker_process_setup_hook`, at the
start of every worker. `launch` mixes the classes below into the fork's actors. The imports stay light, because vLLM's
engine process imports this file for `CpuWorkerExtension`.

Limits: a single machine (weights travel through shared memory), and no sleep mode, Adam offload or Liger kernels, which
save GPU memory or need CUDA.
"""

import functools
import os
import tempfile

import torch

from openrlhf_shear.kernels.bfloat16 import multiply_in_float32
from openrlhf_shear.train import hooks
from openrlhf_shear.train.cpu import flash_attn_stand_in
from openrlhf_shear.train.nodes import worker
from openrlhf_shear.train.nodes.worker import keep_stores_there
from openrlhf_shear.train.screen.story import say

WORKER_SETUP_HOOK = "openrlhf_shear.train.cpu.backend.set_up_worker"
SHARED_MEMORY = "/dev/shm"
_IN_THE_CORE = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
_COLLECTIVES = (
    *("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "all_gather_base"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"),
)
ENVIRONMENT = {  # defaults: the user's own settings win
    "DS_ACCELERATOR": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Actor, engine and trainer share the cores, and their threads wait for each other: each gets half of the cores.
    "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // 2)),
    "TOKENIZERS_PARALLELISM": "false",
    # Zero-copy tensors are views of shared memory. A move to a GPU copies them, a move to the CPU does not: an in-place
    # operation would overwrite data that other processes read.
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def install() -> None:
    """Prepare this process for CPU training.

    Set the environment, install stand-ins for flash-attn, redirect `torch.cuda` calls, and speed up matrix products.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    flash_attn_stand_in.install()
    multiply_in_float32()
    if hooks.CUDA_DEVICE.get() is not _current_device:
        hooks.CUDA_DEVICE.put(_current_device)
        for patch in hooks.CUDA_CALLS:
            patch.put(lambda *args, **kwargs: None)
    keep_stores_there()


def set_up_worker() -> None:
    """Prepare a Ray worker for CPU training."""
    install()
    worker.allow_lost_output()


def adapt(args) -> None:
    """Replace settings in OpenRLHF's nested namespace `args` that only make sense with CUDA, and print the changes."""
    # sdpa derives the mask of packed sequences from the restarts of position ids.
    attention = "sdpa" if "flash" in args.ds.attn_implementation else args.ds.attn_implementation
    wanted = [(args.ds, "attn_implementation", attention), (args.vllm, "enable_sleep", False)]
    wanted += [(args.ds, name, False) for name in ("enable_sleep", "adam_offload", "use_liger_kernel")]
    changes = []
    for section, name, value in wanted:
        if getattr(section, name) != value:
            changes.append(f"{name} {getattr(section, name)} -> {value}")
            setattr(section, name, value)
    say("CPU backend: " + ("; ".join(changes) or "no setting had to be changed"))


class CpuStrategy:
    """Mixin for `DeepspeedStrategy`: gloo, torch's AdamW, and no kernels that DeepSpeed would compile at the start.

    The strategy is the first object that OpenRLHF builds from its arguments, so it also adapts them.
    """

    def __init__(self, *positional, args=None, **kwargs):
        adapt(args)
        super().__init__(*positional, args=args, **kwargs)

    def setup_distributed(self, *args, **kwargs) -> None:
        hooks.SHM_OP.put(False)
        upstream = hooks.DEVICE_MESH.get()
        mesh = hooks.DEVICE_MESH.held(lambda _, *shape, **names: upstream("cpu", *shape, **names))
        with mesh, hooks.BACKEND.held(_gloo_backend(hooks.BACKEND.get())):
            super().setup_distributed(*args, **kwargs)

    def get_ds_train_config(self, optim_dict=None, **kwargs) -> dict:
        if optim_dict is not None and optim_dict["type"] == "AdamW":
            optim_dict = {**optim_dict, "params": {**optim_dict["params"], "torch_adam": True}}
        return super().get_ds_train_config(optim_dict, **kwargs)


def _gloo_backend(upstream: type) -> type:
    """Return a subclass of DeepSpeed's torch backend whose collectives are finished when they return.

    DeepSpeed waits only for the last of several asynchronous calls, which is enough on a CUDA stream. Gloo runs
    collectives on several threads, so an earlier one may still be writing.
    """

    def completed(name: str):
        collective = getattr(upstream, name)

        @functools.wraps(collective)
        def call(self, *args, **kwargs):
            work = collective(self, *args, **kwargs)
            if work is not None:
                work.wait()
            return work

        return call

    def all_gather_coalesced(self, output_tensors, input_tensors, group=None, async_op=False):
        works = [
            self.all_gather_into_tensor(output, source, group=group, async_op=True)
            for output, source in zip(output_tensors, input_tensors, strict=True)
        ]
        return works[-1] if async_op else None

    methods = {name: completed(name) for name in _COLLECTIVES} | {"all_gather_coalesced": all_gather_coalesced}
    return type("GlooBackend", (upstream,), methods)


class CpuPolicy:
    """Mixin for the policy actor: sends weights to vLLM as a safetensors file in shared memory.

    Upstream's two ways, CUDA IPC and NCCL, need CUDA.
    """

    def init_model_from_pretrained(self, strategy, pretrain, max_steps=None, vllm_engines=None):
        # Without engines upstream does not set up its NCCL group; _send_weights below uses our own reference.
        super().init_model_from_pretrained(strategy, pretrain, max_steps, None)
        self.vllm_engines = vllm_engines

    def _send_weights(self) -> None:
        import ray
        from safetensors.torch import save_file

        from openrlhf_shear.train.update.lora import whole

        is_first_rank = torch.distributed.get_rank() == 0
        # A tied LM head is also sent under its second name: vLLM's reload unties it, and would keep the old head.
        weights = whole(self.actor.model.module, self._whole, remove_duplicate=False)
        if is_first_rank:
            folder = SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None
            with tempfile.NamedTemporaryFile(dir=folder, prefix="openrlhf_shear_", suffix=".safetensors") as file:
                save_file(weights, file.name)
                refs = [engine.load_actor_weights.remote(file.name) for engine in self.vllm_engines]
                if self.strategy.args.vllm.enable_prefix_caching:
                    refs += [engine.reset_prefix_cache.remote() for engine in self.vllm_engines]
                ray.wait(refs, num_returns=len(refs))  # not get: an error would delete a file in use
        torch.distributed.barrier()  # before ray.get, so that no rank waits for a rank that raised
        if is_first_rank:
            ray.get(refs)

    def _whole(self, parameter: torch.nn.Parameter):
        """Gather a parameter from all ranks inside the returned context, as upstream does."""
        import deepspeed
        from deepspeed.module_inject.layers import GatherReplacedLayerParams

        if self.strategy.args.ds.tensor_parallel_size > 1:
            return GatherReplacedLayerParams([parameter], self.actor.model.module)
        return deepspeed.zero.GatheredParameters([parameter], enabled=self.strategy.args.ds.zero_stage == 3)


class CpuRollout:
    """Mixin for the rollout actor: gives vLLM's worker the extension that reads weights from a file.

    The worker runs in the core's process, as on a GPU. For the name "uni" on a CPU, vLLM would start a worker process
    to pin its threads, although "nobind" disables pinning. That process would import vLLM again, and keep a core busy
    for a second after each batch while it waits for the next.

    Prompts are prefilled whole. With chunked prefill vLLM rewinds a seeded request's generator by setting an offset.
    CPU generators have no offset, and the engine would die.
    """

    async def __init__(self, *args, **kwargs):
        kwargs["worker_extension_cls"] = f"{__name__}.{CpuWorkerExtension.__name__}"
        if kwargs["distributed_executor_backend"] == "uni":
            kwargs["distributed_executor_backend"] = _IN_THE_CORE
        kwargs["enable_chunked_prefill"] = False
        kwargs["max_num_batched_tokens"] = max(kwargs["max_model_len"], 4096)
        await super().__init__(*args, **kwargs)

    async def load_actor_weights(self, path: str) -> None:
        await self.llm.collective_rpc("load_actor_weights", args=(path,))
        self._stale = False


class CpuWorkerExtension:
    """Extension of vLLM's worker: methods that vLLM adds to it, in the engine's process."""

    def load_actor_weights(self, path: str) -> None:
        from safetensors.torch import load_file

        # vLLM's CPU linear layers repack their weights and drop the originals, so `model.load_weights` works only
        # once; `reload_weights` restores the layout first.
        self.model_runner.reload_weights(weights_iterator=iter(load_file(path).items()))


MIXINS = {hooks.STRATEGY: CpuStrategy, hooks.POLICY: CpuPolicy, hooks.ENGINE: CpuRollout}


class _CpuDevice(str):
    """Result of `torch.cuda.current_device()`: the device "cpu" for `.to(...)` and `device=...`.

    Upstream's replay buffer also builds `torch.device(f"cuda:{current_device()}")`, which it never uses. Formatted,
    this is the index 0, so that the device name is valid.
    """

    def __format__(self, spec: str) -> str:
        return "0"


def _current_device() -> _CpuDevice:
    return _CpuDevice("cpu")
