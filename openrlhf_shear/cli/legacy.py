"""The command line of OpenRLHF 0.9: its spellings, translated into those of 0.11.

    --pretrain Qwen/Qwen3-8B --max_norm 1
    --actor.model_name_or_path Qwen/Qwen3-8B --actor.max_norm 1 --critic.max_norm 1

A translated flag stands where the old one stood, so that argparse's rule (the last one on the line wins) holds
between old and new spellings too.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Translation:
    """A translated line, with what to tell the user: old spelling -> new spelling, and the flags left out."""

    argv: list[str]
    renamed: dict[str, str]
    ignored: tuple[str, ...]


RENAMES: dict[str, str] = {
    # resources, vLLM
    "--ref_num_nodes": "--ref.num_nodes",
    "--ref_num_gpus_per_node": "--ref.num_gpus_per_node",
    "--reward_num_nodes": "--reward.num_nodes",
    "--reward_num_gpus_per_node": "--reward.num_gpus_per_node",
    "--actor_num_nodes": "--actor.num_nodes",
    "--actor_num_gpus_per_node": "--actor.num_gpus_per_node",
    "--critic_num_nodes": "--critic.num_nodes",
    "--critic_num_gpus_per_node": "--critic.num_gpus_per_node",
    "--vllm_num_engines": "--vllm.num_engines",
    "--vllm_tensor_parallel_size": "--vllm.tensor_parallel_size",
    "--vllm_sync_backend": "--vllm.sync_backend",
    "--vllm_gpu_memory_utilization": "--vllm.gpu_memory_utilization",
    "--async_queue_size": "--train.async_queue_size",
    # checkpoints, logs
    "--eval_steps": "--eval.steps",
    "--save_steps": "--ckpt.save_steps",
    "--logging_steps": "--logger.logging_steps",
    "--ckpt_path": "--ckpt.path",
    "--max_ckpt_num": "--ckpt.max_num",
    "--max_ckpt_mem": "--ckpt.max_mem",
    "--best_metric_key": "--ckpt.best_metric_key",
    "--save_path": "--ckpt.output_dir",
    "--use_wandb": "--logger.wandb.key",
    "--wandb_org": "--logger.wandb.org",
    "--wandb_group": "--logger.wandb.group",
    "--wandb_project": "--logger.wandb.project",
    "--wandb_run_name": "--logger.wandb.run_name",
    "--use_tensorboard": "--logger.tensorboard_dir",
    # DeepSpeed, LoRA
    "--zero_stage": "--ds.zero_stage",
    "--param_dtype": "--ds.param_dtype",
    "--ema_beta": "--train.ema_beta",
    "--zpg": "--ds.zpg",
    "--attn_implementation": "--ds.attn_implementation",
    "--grad_accum_dtype": "--ds.grad_accum_dtype",
    "--dataloader_num_workers": "--data.dataloader_num_workers",
    "--ds_tensor_parallel_size": "--ds.tensor_parallel_size",
    "--ring_attn_size": "--ds.ring_attn_size",
    "--ring_head_stride": "--ds.ring_attn_head_stride",
    "--value_head_prefix": "--ds.value_head_prefix",
    "--lora_rank": "--ds.lora.rank",
    "--lora_alpha": "--ds.lora.alpha",
    "--lora_dropout": "--ds.lora.dropout",
    # batches, rollouts
    "--rollout_max_tokens_per_gpu": "--rollout.max_tokens_per_gpu",
    "--train_max_tokens_per_gpu": "--train.max_tokens_per_gpu",
    "--num_episodes": "--train.num_episodes",
    "--rollout_batch_size": "--rollout.batch_size",
    "--vllm_generate_batch_size": "--rollout.vllm_generate_batch_size",
    "--micro_rollout_batch_size": "--rollout.micro_batch_size",
    "--max_epochs": "--train.max_epochs",
    "--max_len": "--data.max_len",
    "--max_new_tokens": "--rollout.max_new_tokens",
    "--max_samples": "--data.max_samples",
    "--micro_train_batch_size": "--train.micro_batch_size",
    "--train_batch_size": "--train.batch_size",
    "--top_p": "--rollout.top_p",
    "--temperature": "--rollout.temperature",
    "--seed": "--train.seed",
    "--n_samples_per_prompt": "--rollout.n_samples_per_prompt",
    # the algorithm
    "--advantage_estimator": "--algo.advantage.estimator",
    "--eps_clip": "--actor.eps_clip",
    "--dual_clip": "--actor.dual_clip",
    "--value_clip": "--critic.value_clip",
    "--lambd": "--algo.advantage.lambd",
    "--gamma": "--algo.advantage.gamma",
    "--freezing_actor_steps": "--critic.freezing_steps",
    "--actor_learning_rate": "--actor.adam.lr",
    "--critic_learning_rate": "--critic.adam.lr",
    "--kl_target": "--algo.kl.target",
    "--kl_horizon": "--algo.kl.horizon",
    "--init_kl_coef": "--algo.kl.init_coef",
    "--kl_estimator": "--algo.kl.estimator",
    "--policy_loss_type": "--actor.policy_loss_type",
    "--aux_loss_coef": "--actor.aux_loss_coef",
    "--entropy_loss_coef": "--actor.entropy_coef",
    "--overlong_buffer_len": "--reward.overlong_buffer_len",
    "--overlong_penalty_factor": "--reward.overlong_penalty_factor",
    "--stop_properly_penalty_coef": "--reward.stop_properly_penalty_coef",
    # models, data
    "--pretrain": "--actor.model_name_or_path",
    "--reward_pretrain": "--reward.model_name_or_path",
    "--critic_pretrain": "--critic.model_name_or_path",
    "--remote_rm_url": "--reward.remote_url",
    "--agent_func_path": "--train.agent_func_path",
    "--prompt_data": "--data.prompt_dataset",
    "--prompt_data_probs": "--data.prompt_probs",
    "--prompt_split": "--data.prompt_split",
    "--eval_dataset": "--eval.dataset",
    "--eval_split": "--eval.split",
    "--eval_temperature": "--eval.temperature",
    "--eval_n_samples_per_prompt": "--eval.n_samples_per_prompt",
    "--input_key": "--data.input_key",
    "--label_key": "--data.label_key",
    "--input_template": "--data.input_template",
    # switches
    "--colocate_actor_ref": "--train.colocate_actor_ref",
    "--colocate_critic_reward": "--train.colocate_critic_reward",
    "--colocate_all_models": "--train.colocate_all",
    "--vllm_sync_with_ray": "--vllm.sync_with_ray",
    "--enable_prefix_caching": "--vllm.enable_prefix_caching",
    "--enforce_eager": "--vllm.enforce_eager",
    "--vllm_enable_sleep": "--vllm.enable_sleep",
    "--async_train": "--train.async_enable",
    "--partial_rollout": "--train.partial_rollout_enable",
    "--save_hf_ckpt": "--ckpt.save_hf",
    "--disable_ds_ckpt": "--ckpt.disable_ds",
    "--load_checkpoint": "--ckpt.load_enable",
    "--use_ds_universal_ckpt": "--ds.use_universal_ckpt",
    "--gradient_checkpointing": "--actor.gradient_checkpointing_enable",
    "--gradient_checkpointing_use_reentrant": "--actor.gradient_checkpointing_reentrant",
    "--deepcompile": "--ds.deepcompile",
    "--enable_ema": "--train.enable_ema",
    "--adam_offload": "--ds.adam_offload",
    "--use_liger_kernel": "--ds.use_liger_kernel",
    "--overlap_comm": "--ds.overlap_comm",
    "--disable_fast_tokenizer": "--data.disable_fast_tokenizer",
    "--deepspeed_enable_sleep": "--ds.enable_sleep",
    "--packing_samples": "--ds.packing_samples",
    "--use_dynamic_batch": "--train.dynamic_batch_enable",
    "--load_in_4bit": "--ds.load_in_4bit",
    "--normalize_reward": "--reward.normalize_enable",
    "--full_determinism": "--train.full_determinism_enable",
    "--save_value_network": "--critic.save_value_network",
    "--use_kl_loss": "--algo.kl.use_loss",
    "--no_advantage_std_norm": "--algo.advantage.no_std_norm",
    "--apply_chat_template": "--data.apply_chat_template",
    "--dynamic_filtering": "--algo.dynamic_filtering_enable",
    # several values
    "--target_modules": "--ds.lora.target_modules",
    "--eps_clip_low_high": "--actor.eps_clip_low_high",
    "--reward_clip_range": "--reward.clip_range",
    "--dynamic_filtering_reward_range": "--algo.dynamic_filtering_range",
    "--vllm_is_truncated_threshold": "--algo.advantage.is_correction_threshold",
    # one became two
    "--max_norm": "--actor.max_norm --critic.max_norm",
    "--l2": "--actor.adam.weight_decay --critic.adam.weight_decay",
    "--adam_betas": "--actor.adam.betas --critic.adam.betas",
    "--lr_scheduler": "--actor.lr_scheduler --critic.lr_scheduler",
    "--lr_warmup_ratio": "--actor.lr_warmup_ratio --critic.lr_warmup_ratio",
    "--ref_reward_offload": "--ref.offload --reward.offload",
}
"""Every 0.9.10 flag whose meaning one or two flags of 0.11 took over, values and all."""

IGNORED: dict[str, int] = {"--perf": 0, "--actor_init_on_gpu": 0, "--ptx_coef": 1}
"""0.9.10 flags without a successor, and how many values they take."""

CORRECTION_SWITCH = "--enable_vllm_is_correction"
CORRECTION_TYPE = "--vllm_is_correction_type"
CORRECTIONS: dict[str, tuple[str, str]] = {
    "tis": ("token", "clip"),
    "icepop": ("token", "mask"),
    "seq-mask-tis": ("seq", "mask"),
}
"""0.9's importance-sampling correction types as 0.11's (level, mode); the gating is the ratio in all three."""


def translate(argv: Sequence[str]) -> list[str]:
    """`argv` with 0.9 spellings replaced; tells on stderr, in a line, which ones, and what was ignored.

    Raises:
        ValueError: `--vllm_is_correction_type` names an unknown type.
    """
    translation = read(argv)
    if translation.renamed:
        spellings = ", ".join(f"{old} -> {new}" for old, new in translation.renamed.items())
        print(f"[Info] OpenRLHF 0.9 spellings were used; in 0.11 they are: {spellings}", file=sys.stderr)
    for flag in translation.ignored:
        print(f"[Warning] {flag} no longer exists in OpenRLHF 0.11; ignored", file=sys.stderr)
    return translation.argv


def read(argv: Sequence[str]) -> Translation:
    """The translation of `argv`, without printing.

    Raises:
        ValueError: `--vllm_is_correction_type` names an unknown type.
    """
    line: list[str] = []
    renamed: dict[str, str] = {}
    ignored: dict[str, None] = {}
    correction = _Correction()
    rest = deque(argv)
    while rest:
        token = rest.popleft()
        flag, equals, value = token.partition("=")
        if flag in RENAMES:
            renamed[flag] = RENAMES[flag]
            line += _renamed(RENAMES[flag].split(), equals + value, rest)
        elif flag in IGNORED:
            ignored[flag] = None
            if not equals:
                _take(rest, IGNORED[flag])
        elif flag in (CORRECTION_SWITCH, CORRECTION_TYPE):
            if flag == CORRECTION_TYPE:
                correction.type = value if equals else "".join(_take(rest, 1))
            correction.on |= flag == CORRECTION_SWITCH
            flags = correction.flags()
            renamed[flag] = " ".join(flags) or "(off)"
            line += flags
        else:
            line.append(token)
    return Translation(line, renamed, tuple(ignored))


def _renamed(names: list[str], inline: str, rest: deque[str]) -> list[str]:
    if len(names) == 1:
        return [names[0] + inline]  # its values follow on the line and need no change
    values = _take(rest, len(rest))
    return [token for name in names for token in (name + inline, *values)]


def _take(rest: deque[str], most: int) -> list[str]:
    """Up to `most` values off the front of the line; a value never starts with `--` (it may be a negative number)."""
    values: list[str] = []
    while rest and len(values) < most and not rest[0].startswith("--"):
        values.append(rest.popleft())
    return values


@dataclass
class _Correction:
    """0.9's importance-sampling correction: a switch and a type in any order; a type without the switch is off."""

    on: bool = False
    type: str = "tis"

    def flags(self) -> list[str]:
        if self.type not in CORRECTIONS:
            raise ValueError(
                f"{CORRECTION_TYPE} is not known: got {self.type!r}; use one of {', '.join(CORRECTIONS)}, or "
                "--algo.advantage.is_correction_level and --algo.advantage.is_correction_mode"
            )
        if not self.on:
            return []
        level, mode = CORRECTIONS[self.type]
        prefix = "--algo.advantage.is_correction_"
        return [f"{prefix}level", level, f"{prefix}mode", mode]
