"""The allowed range of each number on a command line; relations between numbers are checked in the other files."""

import math
from collections.abc import Iterator
from dataclasses import fields, replace

from openrlhf_shear.config.knobs import SHARE, Range
from openrlhf_shear.config.refusal import Finding, refusal
from openrlhf_shear.line.flags import KNOBS
from openrlhf_shear.line.run import Run
from openrlhf_shear.rewards import settings

_COUNT = Range(1, remedy="a positive number")
_NOT_NEGATIVE = Range(0, remedy="0, or a positive number")
_DECAY = Range(0, 1, open_most=True, remedy="e.g. 0.95")

RANGES = {
    **dict.fromkeys(
        (
            *("rollout.batch_size", "rollout.micro_batch_size", "rollout.n_samples_per_prompt"),
            *("rollout.vllm_generate_batch_size", "rollout.max_tokens_per_gpu", "train.max_tokens_per_gpu"),
            *("train.batch_size", "train.micro_batch_size", "train.num_episodes", "train.max_epochs"),
            *("train.async_queue_size", "actor.num_nodes", "actor.num_gpus_per_node"),
            *("vllm.num_engines", "vllm.tensor_parallel_size", "ds.ring_attn_size", "ds.tensor_parallel_size"),
            *("ds.ring_attn_head_stride", "ds.zpg", "logger.logging_steps", "eval.n_samples_per_prompt"),
            *("algo.kl.horizon", "train.max_skipped_steps", "ckpt.max_num"),
        ),
        _COUNT,
    ),
    **dict.fromkeys(
        (
            *("eval.k", "eval.limit", "train.max_restarts", "data.dataloader_num_workers"),
            *("data.max_images_per_prompt", "algo.kl.init_coef", "actor.aux_loss_coef", "critic.value_clip"),
            *("actor.eps_clip", "actor.eps_clip_low_high", "eval.temperature", "vllm.max_gap"),
        ),
        _NOT_NEGATIVE,
    ),
    **{
        f"{model}.{name}": its
        for model in ("actor", "critic")
        for name, its in {
            **dict.fromkeys(("adam.lr", "adam.weight_decay", "max_norm", "muon.lr"), _NOT_NEGATIVE),
            **dict.fromkeys(("lr_warmup_ratio", "min_lr_ratio"), SHARE),
            **dict.fromkeys(("adam.betas", "muon.momentum"), _DECAY),
            "adam.eps": Range(0, open_least=True, remedy="e.g. 1e-8"),
        }.items()
    },
    **dict.fromkeys(("algo.advantage.gamma", "algo.advantage.lambd"), SHARE),
    "train.ema_beta": _DECAY,
    "train.seed": Range(0, 2**32 - 1, remedy="e.g. 42"),
    "train.grace_seconds": Range(1, endless=True),
    "train.wait_for_gpus": Range(0, endless=True),
    "ckpt.max_mem": Range(0, open_least=True, endless=True, remedy="GB, or no such flag"),
    "ds.zero_stage": Range(0, 3, remedy="2, or 3 to shard the weights too"),
    "vllm.gpu_memory_utilization": Range(0, 1, open_least=True, remedy="e.g. 0.6"),
    # vLLM never samples below 0.01, and training divides the logits by the temperature.
    "rollout.temperature": Range(0.01, remedy="e.g. 1.0; rollouts drawn greedily are all alike"),
    "rollout.top_p": Range(0, 1, open_least=True, remedy="1.0"),
    "algo.kl.target": Range(0, open_least=True, remedy="e.g. 0.1, or no such flag"),
    "reward.overlong_buffer_len": Range(0, open_least=True, remedy="tokens, or no such flag"),
    "reward.overlong_penalty_factor": Range(0, open_least=True, remedy="e.g. 1"),
    "reward.stop_properly_penalty_coef": Range(-math.inf, 1, open_least=True, remedy="a share to keep, or a reward"),
    "reward.timeout": Range(0, remedy="seconds, or 0 for the default of each kind of reward"),
    "reward.retries": Range(0, remedy=f"e.g. {settings.RETRIES}, or 0 for one try only"),
    "reward.cores": Range(0, remedy="0 for half of a node's cores"),
    "reward.memory_mb": Range(64, remedy=f"e.g. {settings.MEMORY_MB}"),
    "reward.max_failed": Range(0, 1, remedy=f"e.g. {settings.MAX_FAILED}, or 1 for never"),
    "reward.max_failed_steps": Range(1, remedy=f"e.g. {settings.MAX_FAILED_STEPS}"),
    **dict.fromkeys(("eval.steps", "ckpt.save_steps"), Range(1, also=-1, remedy="a number of steps, or -1 for never")),
}
RANGES |= {
    f"{section}.{knob.name}": replace(within, remedy=within.remedy or f"e.g. {knob.default}")
    for section, kinds in KNOBS.items()
    for kind in kinds
    for knob in fields(kind)
    if isinstance(within := knob.metadata["within"], Range)
}  # of rules that the run does not use too


def ranges(run: Run) -> Iterator[Finding]:
    flags = run.flags
    for flag, within in RANGES.items():
        number = flags[flag]
        for value in number if isinstance(number, list | tuple) else (number,):
            if value is not None and value not in within:
                yield refusal(flag, f"must be {within}", number, within.remedy or "a number of this size")
                break
