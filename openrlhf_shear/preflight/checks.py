"""All checks of a command line, in order. They find, before anything starts, what would fail with Ray and vLLM running.

This folder refuses a command line only if the run is certain to fail later, or certain to train nothing. It does so
only where OpenRLHF 0.11.2 is silent until Ray runs; problems that OpenRLHF's main asserts are left to it.
"""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from openrlhf_shear.config.knobs import SHARE, Range
from openrlhf_shear.config.refusal import Finding, Findings, LineError, Note, Refusal, refusal
from openrlhf_shear.config.rules import LAB_ALONE
from openrlhf_shear.line.run import ESTIMATOR, KNOBS, OF_GROUPS, Run
from openrlhf_shear.preflight.layout import (
    KL_LOSS,
    adapters,
    average,
    batches,
    fits_beside_actor,
    kl_loss,
    optimizer,
    parallel,
    placement,
)
from openrlhf_shear.preflight.memory import memory
from openrlhf_shear.preflight.models import Models, models
from openrlhf_shear.preflight.resources import (
    checkpoints,
    disks,
    folders,
    limits,
    stack,
    temporary_folder,
)
from openrlhf_shear.preflight.rewards import code, shaping, suite, threshold
from openrlhf_shear.preflight.rows import data
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
            "actor.logits_chunk",
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
    "reward.retries": Range(0, remedy=f"e.g. {settings.RETRIES}, or 0 for one try only"),
    "reward.max_failed": Range(0, 1, remedy=f"e.g. {settings.MAX_FAILED}, or 1 for never"),
    "reward.max_failed_steps": Range(1, remedy=f"e.g. {settings.MAX_FAILED_STEPS}"),
    **dict.fromkeys(("eval.steps", "ckpt.save_steps"), Range(1, also=-1, remedy="a number of steps, or -1 for never")),
}
RANGES |= {
    f"{section}.{knob.name}": replace(within, remedy=within.remedy or f"e.g. {knob.default}")
    for section, kinds in (KNOBS | {"reward": (settings.GradingConfig,)}).items()
    for kind in kinds
    for knob in fields(kind)
    if isinstance(within := knob.metadata["within"], Range)
}  # of rules that the run does not use too


_LR = "1e-6, or 1e-5 with LoRA"
UNUSUAL = {  # numbers that can be used, and what is usual: where it ends, what happens beyond, and what to use
    "actor.adam.lr": (1e-3, "most models break in the first step", _LR),
    "critic.adam.lr": (1e-3, "most models break in the first step", _LR),
    "rollout.temperature": (2.0, "responses are noise", "1.0"),
    "actor.eps_clip": (1.0, "no ratio is clipped", "0.2"),
    "algo.kl.init_coef": (1.0, "the policy hardly leaves the reference model", "1e-3"),
    "rollout.n_samples_per_prompt": (4096, "no step ends", "8"),
    "rollout.batch_size": (2**20, "no step ends", "128"),
}


def check(run: Run, files: Models, findings: Findings) -> dict[str, object] | None:
    """Run every check and note its findings. Quick checks run first; the check that reads every row runs last.

    Return the facts of the training rows that a run which resumes is compared by (`rows.data`).
    """
    if not os.path.exists("/proc/self/status"):
        use = "mount -t proc proc /proc"
        raise LineError(Refusal("/proc", "it must be mounted, as the jail and Ray read it", use=use))
    facts: list[dict[str, object] | None] = [None]

    def rows() -> Iterator[Finding]:
        facts[0] = yield from data(run)

    findings.take(*(look(run) for look in CHECKS), *(look(run, files) for look in OF_MODELS), rows())
    return facts[0]


def _needed(run: Run) -> Iterator[Finding]:
    if not run.actor.model_name_or_path:
        yield run.refusal("actor.model_name_or_path", "is needed", "a model folder or a hub id")
    if not run.data.prompt_dataset:
        yield run.refusal("data.prompt_dataset", "is needed", "a file, a folder or a hub id")
    if not (run.graded or run.reward.model_name_or_path):
        kinds = "math, code, a .py file with reward_func or a URL"
        remedy = f"{kinds}, --train.agent_func_path, or --reward.model_name_or_path"
        yield run.refusal("reward.remote_url", "is needed, or nothing gives a reward", remedy)
    if not run.vllm.num_engines:
        yield run.refusal("vllm.num_engines", "must be at least 1, as only vLLM generates", "e.g. 1")


def _groups(run: Run) -> Iterator[Finding]:
    estimator, size = run.estimator, run.rollout.n_samples_per_prompt
    if size == 1 and (run.has_rule or estimator in OF_GROUPS):
        problem = f"must be greater than 1 for estimator {estimator}, which compares the rollouts of one prompt"
        yield run.refusal("rollout.n_samples_per_prompt", problem, "e.g. 8")


def _modes(run: Run) -> Iterator[Finding]:
    """Refuse combinations of OpenRLHF's flags that its main accepts, or refuses under the name of another flag."""
    if run.data.max_images_per_prompt > 0 and run.train.dynamic_batch_enable:
        # OpenRLHF's main refuses packing with images, but turns packing on for dynamic batches only after that check.
        problem = "packs samples, which does not go with images in prompts"
        yield run.refusal("train.dynamic_batch_enable", problem, "neither")
    if run.actor.dual_clip is not None and run.actor.dual_clip <= 1:
        yield run.refusal("actor.dual_clip", "must be greater than 1", "e.g. 3.0")
    if run.algo.kl.target is not None and run.algo.kl.init_coef == 0:
        yield run.refusal("algo.kl.target", "needs --algo.kl.init_coef above 0, which it adapts", "both")
    if run.critic.freezing_steps >= 0 and run.estimator != "gae":
        problem = f"freezes the policy while a critic learns; estimator {run.estimator} has no critic"
        yield run.refusal("critic.freezing_steps", problem, "-1, or estimator gae")
    generated, batch = run.rollout.vllm_generate_batch_size, run.rollout.batch_size
    if generated is not None and generated < batch:
        problem = f"must be at least rollout.batch_size ({batch}), or steps are short of prompts"
        yield run.refusal("rollout.vllm_generate_batch_size", problem, f"{batch}, or no such flag")


def _unusual(run: Run) -> Iterator[Finding]:
    for flag, (most, what, use) in UNUSUAL.items():
        if most < run.flags[flag] < math.inf and (run.estimator == "gae" or not flag.startswith("critic.")):
            yield Note(f"--{flag} {run.flags[flag]:g} is so high that {what}; use e.g. {use}")
    if not run.actor.adam.lr and run.actor.optim == "adam":
        yield Note(f"--actor.adam.lr 0 means that the policy never changes; use e.g. {_LR}")
    if run.spans and run.rollout.max_new_tokens and run.spans.window > run.rollout.max_new_tokens:
        message = (
            f"a span of {run.spans.window} tokens is longer than any response ({run.rollout.max_new_tokens} tokens)"
        )
        yield Note(f"{message}, so all tokens of a response weigh alike; use a smaller window")
    if run.data.apply_chat_template and run.data.input_template:
        yield Note("--data.input_template has no effect with --data.apply_chat_template; use one of them")


def _evaluation(run: Run) -> Iterator[Finding]:
    if run.eval.before_train and not (run.eval.dataset or run.eval.suite):
        yield run.refusal("eval.before_train", "needs something to evaluate on", "--eval.dataset or --eval.suite too")
    if run.eval.suite and run.eval.steps < 1 and not run.eval.before_train:
        yield run.refusal("eval.steps", "must be at least 1 for --eval.suite", "e.g. 5")
    if run.eval.steps > 0 and not (run.eval.dataset or run.eval.suite):
        yield Note("--eval.steps has no effect without --eval.dataset or --eval.suite; use one of them")


def _correction(run: Run) -> Iterator[Finding]:
    """Refuse what OpenRLHF's `PolicyLoss` refuses only after the models are loaded."""
    prefix = "algo.advantage.is_correction_"
    level, mode, gating, threshold = (run.flags[prefix + name] for name in ("level", "mode", "gating", "threshold"))
    if mode == "clip" and (level == "seq" or gating != "ratio"):
        problem = f"clip clamps token ratios, so it cannot be used with level {level} and gating {gating}"
        yield run.refusal(f"{prefix}mode", problem, "mask, or level token with gating ratio")
    low, high = (0.0, *threshold)[-2:]
    if level != "off" and not 0 <= low < high:
        yield run.refusal(f"{prefix}threshold", "must be HIGH, or LOW HIGH with LOW < HIGH", "e.g. 0.5 5.0")
    if gating != "ratio" and level != "off" and len(threshold) == 2 and threshold[0] > 0:
        yield run.refusal(f"{prefix}threshold", f"is an upper bound only for gating {gating}", "a single HIGH")


def _engine_policy(run: Run) -> Iterator[Finding]:
    """Check that the engines' log-probs can be compared with the trainer's.

    The trainer's log-probs include the temperature and not top-p. vLLM's include both or neither.
    """
    corrects = run.algo.advantage.is_correction_level != "off"
    top_p, temperature = run.rollout.top_p, run.rollout.temperature
    if top_p == 1.0:
        return
    if corrects and temperature != 1.0:
        problem = "does not go with --algo.advantage.is_correction_level at a temperature other than 1"
        yield run.refusal("rollout.top_p", problem, "--rollout.top_p 1, --rollout.temperature 1, or no correction")
    shown = "" if temperature == 1.0 else "; with this temperature there is no vllm_kl either"
    yield Note(
        f"rollout.top_p {top_p:g}: engines draw from the nucleus, but the PPO ratio covers the whole vocabulary; no "
        f"importance correction makes up for that{shown}"
    )


def _ranges(run: Run) -> Iterator[Finding]:
    for flag, within in RANGES.items():
        number = run.flags[flag]
        for value in number if isinstance(number, list | tuple) else (number,):
            if value is not None and value not in within:
                yield run.refusal(flag, within.problem(value), within.remedy or "a number of this size")
                break


def _rule(run: Run) -> Iterator[Finding]:
    """Refuse flags that do not go with the credit rule, and what the rule needs and the run does not have."""
    if run.spec is None:
        return
    estimator, traits = run.estimator, run.traits
    if run.ds.deepcompile:
        problem = f"means compiled code, which hooks cannot look into; estimator {estimator} does not support it"
        yield run.refusal("ds.deepcompile", problem, "no such flag")
    if lab_alone := traits.needs.intersection(LAB_ALONE):  # of a built-in rule; `load_rule` has refused the others
        problem = f"needs {', '.join(sorted(lab_alone))}, which only the credit lab gives"
        yield run.refusal(ESTIMATOR, problem, "shear-lab, or another rule")
        return
    if traits.kind == "advantages":
        yield from _own_advantages(run)
    yield from _models_read(run)
    if "prm_scores" in traits.needs:
        if not run.prm.model_name_or_path:
            problem = f"is needed: estimator {estimator} reads the step scores of a process reward model"
            yield run.refusal("prm.model_name_or_path", problem, "a folder or hub id, e.g. Qwen/Qwen2.5-Math-PRM-7B")
        if run.prm.offload and run.ds.zero_stage != 3:
            yield run.refusal("prm.offload", "needs ZeRO-3", "--ds.zero_stage 3 too")
        if run.train.colocate_all:
            yield from fits_beside_actor(run, "prm")


def _dump(run: Run) -> Iterator[Finding]:
    """Refuse rollout dumps for an estimator without token weights: dumps are written before the update."""
    flag, every, estimator = "credit.dump_rollouts_every", run.dump_rollouts_every, run.estimator
    if every < 0:
        yield refusal(flag, "must be at least 0", every, "a number of steps, e.g. 20, or 0 for never")
    if every <= 0:
        return
    if not run.has_rule:
        grpo = "--algo.advantage.estimator uniform, which trains just as group_norm does, or shear"
        yield refusal(flag, f"needs a credit rule, which {estimator} is not", every, grpo)
    elif run.traits.kind == "update":
        problem = f"has nothing to show for estimator {estimator}, which changes advantages only in the update"
        yield refusal(flag, problem, every, "0, or another credit rule")


def _models_read(run: Run) -> Iterator[Finding]:
    estimator, needs = run.estimator, run.traits.needs
    if "ref_log_probs" in needs and run.algo.kl.init_coef <= 0:
        problem = f"must be above 0: estimator {estimator} reads a reference model, which OpenRLHF loads only then"
        yield run.refusal("algo.kl.init_coef", problem, f"e.g. 1e-3 with {KL_LOSS}")
    if "lm_head" not in needs:
        return
    why = f"cuts the LM head into shards, and estimator {estimator} reads it whole"
    if run.ds.zero_stage == 3:
        yield run.refusal("ds.zero_stage", why, "2")
    if run.ds.tensor_parallel_size > 1:
        yield run.refusal("ds.tensor_parallel_size", why, "1")


def _own_advantages(run: Run) -> Iterator[Finding]:
    reason = f"would have no effect: estimator {run.estimator} makes its own advantages, from scores"
    for flag in ("reward.overlong_buffer_len", "reward.stop_properly_penalty_coef"):
        if run.flags[flag] is not None:
            yield run.refusal(flag, reason, "a reward function that knows lengths")
    if tuple(run.reward.clip_range) != (-10, 10):  # OpenRLHF's default
        yield run.refusal("reward.clip_range", reason, "a reward function that clips")
    if run.algo.kl.init_coef > 0 and not run.algo.kl.use_loss:
        remedy = KL_LOSS if "ref_log_probs" in run.traits.needs else f"0, or {KL_LOSS}"
        yield run.refusal("algo.kl.init_coef", f"as a reward {reason}", remedy)


CHECKS: tuple[Callable[[Run], Iterator[Finding]], ...] = (
    *(_needed, _ranges, _groups, _modes, _unusual, _evaluation, _correction, _engine_policy, _rule, _dump),
    *(optimizer, average, kl_loss, placement, parallel, batches, suite, code, shaping, threshold),
    *(folders, checkpoints, temporary_folder, limits, stack),
)
OF_MODELS: tuple[Callable[[Run, Models], Iterator[Finding]], ...] = (models, adapters, memory, disks)
