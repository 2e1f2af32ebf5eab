"""The CPU backend: what lets OpenRLHF's CUDA code train on a machine without a GPU.

Loaded only when `--device cpu` was asked for, or when no CUDA device is there; on a CUDA machine nothing of this file
is imported. `install` runs in the driver and, as Ray's `worker_process_setup_hook`, at the start of every worker.
The classes below are mixed into the fork's actors by `openrlhf_shear.fork.launch`. Module level stays light: vLLM's
engine process imports this file for `CpuWorkerExtension`.

Limits: one machine (weights travel through shared memory), and no sleep mode, Adam offload or Liger kernels, which are
about GPU memory or need CUDA.
"""

from __future__ import annotations

import functools
import importlib.machinery
import os
import sys
import tempfile
import types

import torch

WORKER_SETUP_HOOK = "openrlhf_shear.fork.cpu_backend.install"
SHARED_MEMORY = "/dev/shm"
ENVIRONMENT = {  # defaults: what the user has set stays
    "DS_ACCELERATOR": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Actor, engine and trainer share the cores, and threads of one wait for those of another: half of them each.
    "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // 2)),
    "TOKENIZERS_PARALLELISM": "false",
    # Zero-copy tensors are views of shared memory; moving them to the CPU does not copy them as moving to a GPU does,
    # so an operation in place would write into what others read.
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def install() -> None:
    """Prepare this process: environment, a stand-in for flash-attn, and `torch.cuda` calls that mean the CPU."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _install_flash_attn_stand_in()
    _redirect_cuda_calls()


def adapt(args) -> None:
    """Replace the settings of OpenRLHF's nested namespace `args` that only make sense with CUDA, and say so.

    Raises:
        ValueError: LoRA was asked for: there is no way yet to send merged adapters to vLLM on the CPU.
    """
    if args.ds.lora.rank > 0:
        raise ValueError(f"ds.lora.rank must be 0 on the CPU backend: got {args.ds.lora.rank}; train all weights")
    changes = []

    def replace(section, name: str, value) -> None:
        if getattr(section, name) != value:
            changes.append(f"{name} {getattr(section, name)} -> {value}")
            setattr(section, name, value)

    if "flash" in args.ds.attn_implementation:
        # sdpa derives the mask of packed sequences from position ids that restart
        replace(args.ds, "attn_implementation", "sdpa")
    replace(args.vllm, "enable_sleep", False)
    replace(args.ds, "enable_sleep", False)
    replace(args.ds, "adam_offload", False)
    replace(args.ds, "use_liger_kernel", False)
    print("[openrlhf_shear] CPU backend: " + ("; ".join(changes) or "no setting had to be changed"), flush=True)


class CpuStrategy:
    """Mixed into `DeepspeedStrategy`: gloo, torch's AdamW, and no kernels that DeepSpeed would compile at start.

    The strategy is the first thing OpenRLHF builds from its arguments, so this is also where they are adapted.
    """

    def __init__(self, *positional, args=None, **kwargs):
        adapt(args)
        super().__init__(*positional, args=args, **kwargs)

    def setup_distributed(self, *args, **kwargs) -> None:
        import deepspeed

        # An all-reduce for tensor-parallel inference: never used here, and its build needs the Python headers.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        _complete_collectives_at_once()
        super().setup_distributed(*args, **kwargs)

    def get_ds_train_config(self, optim_dict=None, **kwargs) -> dict:
        if optim_dict is not None and optim_dict["type"] == "AdamW":
            optim_dict = {**optim_dict, "params": {**optim_dict["params"], "torch_adam": True}}
        return super().get_ds_train_config(optim_dict, **kwargs)

    def moving_average(self, model, model_ema, beta=0.992, device="cpu") -> None:
        super().moving_average(model, model_ema, beta, "cpu")


def _complete_collectives_at_once() -> None:
    """Let every collective of DeepSpeed's torch backend finish before it returns, also one that was asked for async.

    DeepSpeed launches several and waits for the last one, which is enough on a CUDA stream. Gloo runs them on several
    threads, so that an earlier one can still be writing: seen as NaN weights after loading a model under ZeRO-3.
    """
    from deepspeed.comm.torch import TorchBackend

    def completed(collective):
        @functools.wraps(collective)
        def call(*args, **kwargs):
            work = collective(*args, **kwargs)
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

    if hasattr(TorchBackend.all_gather_into_tensor, "__wrapped__"):
        return
    for name in ("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "all_gather_base"):
        setattr(TorchBackend, name, completed(getattr(TorchBackend, name)))
    for name in ("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"):
        setattr(TorchBackend, name, completed(getattr(TorchBackend, name)))
    TorchBackend.all_gather_coalesced = all_gather_coalesced


class CpuWeightSync:
    """Mixed into the policy actor: weights reach vLLM as one safetensors file in shared memory.

    CUDA IPC and NCCL, upstream's two ways, do not exist here.
    """

    def init_model_from_pretrained(self, strategy, pretrain, max_steps=None, vllm_engines=None):
        # Without engines upstream does not set up its NCCL group; broadcast_to_vllm below uses our own reference.
        super().init_model_from_pretrained(strategy, pretrain, max_steps, None)
        self.vllm_engines = vllm_engines

    def broadcast_to_vllm(self) -> None:
        import deepspeed
        import ray
        from safetensors.torch import save_file

        model = self.actor.model.module
        is_first_rank = torch.distributed.get_rank() == 0
        sharded = self.strategy.args.ds.zero_stage == 3
        weights = {}
        # A tied LM head is sent under its own name too: vLLM's reload unties it, and would sample from the old one.
        for name, parameter in model.named_parameters(remove_duplicate=False):
            with deepspeed.zero.GatheredParameters([parameter], enabled=sharded):
                if is_first_rank:
                    weights[name] = parameter.data.clone()
        if is_first_rank:
            folder = SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None
            with tempfile.NamedTemporaryFile(dir=folder, prefix="openrlhf_shear_", suffix=".safetensors") as file:
                save_file(weights, file.name)
                ray.get([engine.load_actor_weights.remote(file.name) for engine in self.vllm_engines])
                if self.strategy.args.vllm.enable_prefix_caching:
                    ray.get([engine.reset_prefix_cache.remote() for engine in self.vllm_engines])
        torch.distributed.barrier()


class CpuRollout:
    """Mixed into the rollout actor: vLLM's worker gets the extension that reads weights from a file.

    Prompts are read whole. Of one that is read in chunks vLLM winds the request's own generator (its seed) back by
    setting an offset, which generators on the CPU don't have: the engine would die.
    """

    async def __init__(self, *args, **kwargs):
        kwargs["worker_extension_cls"] = f"{__name__}.{CpuWorkerExtension.__name__}"
        kwargs["enable_chunked_prefill"] = False
        kwargs["max_num_batched_tokens"] = max(kwargs["max_model_len"], 4096)
        await super().__init__(*args, **kwargs)

    async def load_actor_weights(self, path: str) -> None:
        await self.llm.collective_rpc("load_actor_weights", args=(path,))


class CpuWorkerExtension:
    """Methods vLLM adds to its own worker, in the engine's process."""

    def load_actor_weights(self, path: str) -> None:
        from safetensors.torch import load_file

        # vLLM's CPU linear layers repack their weights and drop the originals, so `model.load_weights` works only
        # once; reload_weights restores the layout first.
        self.model_runner.reload_weights(weights_iterator=iter(load_file(path).items()))


MIXINS = {"DeepspeedStrategy": CpuStrategy, "PolicyModelActor": CpuWeightSync, "RolloutRayActor": CpuRollout}


class _CpuDevice(str):
    """What `torch.cuda.current_device()` returns: the device "cpu" for `.to(...)` and `device=...`.

    Upstream's replay buffer also writes `torch.device(f"cuda:{current_device()}")`, as a description it never uses;
    formatted, this is the index 0, so that the description is well formed.
    """

    def __format__(self, spec: str) -> str:
        return "0"


def _redirect_cuda_calls() -> None:
    import torch.distributed.device_mesh as device_mesh

    if getattr(torch.cuda, "_openrlhf_shear_cpu", False):
        return
    torch.cuda._openrlhf_shear_cpu = True
    torch.cuda.current_device = lambda: _CpuDevice("cpu")
    torch.cuda.set_device = lambda device: None
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.empty_cache = lambda: None
    torch.cuda.current_stream = lambda device=None: None

    init_device_mesh = device_mesh.init_device_mesh
    device_mesh.init_device_mesh = lambda device_type, *args, **kwargs: init_device_mesh("cpu", *args, **kwargs)
    torch.distributed.init_device_mesh = device_mesh.init_device_mesh


def _install_flash_attn_stand_in() -> None:
    """Put a `flash_attn` into `sys.modules` with the padding helpers that OpenRLHF imports; no attention kernel."""
    if "flash_attn" in sys.modules:
        return
    package = types.ModuleType("flash_attn")
    package.__path__ = []
    padding = types.ModuleType("flash_attn.bert_padding")
    padding.unpad_input, padding.pad_input = _unpad_input, _pad_input
    padding.index_first_axis, padding.rearrange = _index_first_axis, _rearrange
    utils = types.ModuleType("flash_attn.utils")
    utils.__path__ = []
    distributed = types.ModuleType("flash_attn.utils.distributed")
    distributed.all_gather = _all_gather
    for module in (package, padding, utils, distributed):
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, loader=None)
        sys.modules[module.__name__] = module


def _unpad_input(tensor: torch.Tensor, attention_mask: torch.Tensor):
    """Keep the attended positions: (B, S, ...) -> (tokens, ...), indices, cumulative lengths, longest, lengths."""
    lengths = attention_mask.sum(-1, dtype=torch.int32)
    indices = attention_mask.flatten().nonzero().flatten()
    cumulative = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return tensor.flatten(0, 1)[indices], indices, cumulative, int(lengths.max()), lengths


def _pad_input(tokens: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """The inverse of `_unpad_input`: (tokens, ...) -> (B, S, ...), zeros elsewhere."""
    padded = tokens.new_zeros((batch * seqlen, *tokens.shape[1:]))
    return padded.index_copy(0, indices, tokens).unflatten(0, (batch, seqlen))


def _index_first_axis(tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return tensor[indices]


def _rearrange(tensor: torch.Tensor, pattern: str, **sizes) -> torch.Tensor:
    import einops

    return einops.rearrange(tensor, pattern, **sizes)


def _all_gather(tensor: torch.Tensor, group) -> torch.Tensor:
    raise RuntimeError("ring attention needs flash-attn and CUDA; the CPU backend does not have them")
