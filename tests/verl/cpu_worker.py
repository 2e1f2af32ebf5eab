"""verl's FSDP training worker on a CPU, for tests: verl lacks a CPU platform and the engine's entry for it."""

import os
from functools import lru_cache
from types import SimpleNamespace

import torch

os.environ.update(VERL_PLATFORM="cpu", VERL_ENGINE_DEVICE="cuda", VERL_ENGINE_VENDOR="none")
os.environ.update({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"} | os.environ)

from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.plugin.platform.platform_manager import PlatformRegistry


@PlatformRegistry.register("cpu")
class PlatformCPU(PlatformCUDA):
    """A CPU platform: verl ships accelerators' alone."""

    device_name = "cpu"
    vendor_name = "none"
    device_module = SimpleNamespace(
        max_memory_allocated=lambda: 0,
        max_memory_reserved=lambda: 0,
        memory_allocated=lambda: 0,
        memory_reserved=lambda: 0,
        mem_get_info=lambda: (0, 0),
        get_device_name=lambda: "CPU",
        is_available=lambda: True,
        current_device=lambda: torch.device("cpu"),
        manual_seed=lambda seed: None,
    )

    def is_platform_available(self, use_smi_check=False):
        return True

    def is_available(self):
        return True

    def current_device(self):
        return torch.device("cpu")

    def device_count(self):
        return 1

    def set_device(self, index):
        pass

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def communication_backend_name(self):
        return "gloo"


from tensordict import TensorDict  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.workers.config import HFModelConfig, TrainingWorkerConfig  # noqa: E402
from verl.workers.config.engine import FSDPEngineConfig  # noqa: E402
from verl.workers.engine_workers import TrainingWorker  # noqa: E402

from openrlhf_shear.integrations.verl import ShearWorker  # noqa: E402
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR, make_problems  # noqa: E402
from openrlhf_shear.tasks.arithmetic.sampling import response_text, sample_ids  # noqa: E402
from openrlhf_shear.tasks.arithmetic.solutions import check  # noqa: E402


def worker(strategy: str = "fsdp2", packed: bool = True, dynamic: bool = False, lora: int = 0) -> ShearWorker:
    """Our worker around verl's training worker with the shipped policy.

    It skips verl's constructor, which also makes a rollout engine.
    """
    if not torch.distributed.is_initialized():  # verl asks for two backends, by device
        torch.distributed.init_process_group("gloo")
    model = HFModelConfig(
        path=str(POLICY_DIR),
        use_remove_padding=packed,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "sdpa"},
        lora_rank=lora,
        target_modules=["q_proj", "v_proj"],
    )
    engine = FSDPEngineConfig(
        strategy=strategy,
        use_torch_compile=False,
        use_dynamic_bsz=dynamic,
        infer_max_token_len_per_gpu=400,
        infer_micro_batch_size_per_gpu=2,
        mixed_precision={"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
    )
    config = TrainingWorkerConfig(
        model_type="language_model", model_config=model, engine_config=engine, optimizer_config=optimizer()
    )
    made = ShearWorker.__new__(ShearWorker)
    made.enable_routing_replay = False
    made.actor = TrainingWorker(config)
    made.actor.reset()
    made.profiler = made.actor.profiler
    made._Worker__dispatch_dp_rank, made._Worker__collect_dp_rank = {}, {}
    made.set_dispatch_collect(mesh_name="actor", **made.actor.get_dispatch_collect())
    return made


def optimizer():
    from verl.workers.config.optimizer import FSDPOptimizerConfig

    return FSDPOptimizerConfig(lr=1e-4)


def batch(rows: list[dict], **more) -> TensorDict:
    """As TransferQueue hands it to a worker: rows of `prompt`, `response`, `mask` ids, a score, `uid`."""

    def nested(values, dtype=torch.int64):
        return torch.nested.as_nested_tensor([torch.as_tensor(v, dtype=dtype) for v in values], layout=torch.jagged)

    full = [[*row["prompt"], *row["response"]] for row in rows]
    scores = [[0.0] * (len(row["response"]) - 1) + [row["score"]] for row in rows]
    tensors = {
        "prompts": nested([row["prompt"] for row in rows]),
        "responses": nested([row["response"] for row in rows]),
        "response_mask": nested([row["mask"] for row in rows]),
        "loss_mask": nested([row["mask"] for row in rows]),
        "input_ids": nested(full),
        "position_ids": nested([range(len(ids)) for ids in full]),
        "rm_scores": nested(scores, torch.float32),
        "uid": [row["uid"] for row in rows],
    }
    said = {"calculate_entropy": True, "compute_loss": False, "temperature": 1.0}
    return tu.get_tensordict(tensors, {**said, **more})


@lru_cache
def rollouts(groups: int = 3, size: int = 4) -> list[dict]:
    """The shipped policy's responses to problems, as rows of `batch`; one of them with tokens of an environment."""
    model = AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(POLICY_DIR)
    asked = [problem for problem in make_problems(groups, 10_000) for _ in range(size)]
    responses = sample_ids(model, tokenizer, [problem.prompt for problem in asked], seed=0)
    rows = []
    for i, (problem, ids) in enumerate(zip(asked, responses, strict=True)):
        mask = [1] * len(ids)
        mask[10:20] = [0 if i == 1 else 1] * len(mask[10:20])
        right = check(problem, response_text(tokenizer, ids)).correct
        prompt = tokenizer.encode(problem.prompt, add_special_tokens=False)
        rows.append(
            {"prompt": prompt, "response": ids.tolist(), "mask": mask, "score": float(right), "uid": f"p{i // size}"}
        )
    assert any(len({row["score"] for row in rows[at : at + size]}) == 2 for at in range(0, len(rows), size))
    return rows
