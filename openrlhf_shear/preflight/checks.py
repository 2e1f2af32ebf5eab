"""What would fail once Ray, vLLM and the models are up, found before any of them starts.

`check` takes OpenRLHF's flat namespace with dotted names. Every rule refuses only what is certain to fail (or to train
nothing) later; where OpenRLHF 0.11.2 itself asserts it, the rule says so earlier and holds under `python -O` too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from openrlhf_shear.config.names import is_rule
from openrlhf_shear.preflight.inputs import code, data, models, suite
from openrlhf_shear.preflight.layout import batches, placement
from openrlhf_shear.preflight.refusal import ESTIMATOR, Values, graded, need_graded, refuse
from openrlhf_shear.preflight.rules import dump, modes, rule

_GROUPED = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")


def check(args: argparse.Namespace) -> None:
    """Refuses a command line that cannot work; the quick rules first, data sets and models last.

    Args:
        args: the parsed flags by dotted name, the estimator still as given ("shear").

    Raises:
        ValueError: names the flag, what it got and what to use instead.
    """
    values = vars(args)
    for look in RULES:
        look(values)


def _needed(values: Values) -> None:
    if not values["actor.model_name_or_path"]:
        refuse("actor.model_name_or_path", "is needed", None, "a model folder or a hub id")
    if not values["data.prompt_dataset"]:
        refuse("data.prompt_dataset", "is needed", None, "a file, a folder or a hub id")
    if not (graded(values) or values["reward.model_name_or_path"]):
        refuse(
            "reward.remote_url",
            "is needed, or nothing gives a reward",
            None,
            "math, code, a .py file with reward_func or a URL, --train.agent_func_path, or --reward.model_name_or_path",
        )
    if not values["vllm.num_engines"]:
        refuse("vllm.num_engines", "must be at least 1, as only vLLM generates", values["vllm.num_engines"], "e.g. 1")


def _counts(values: Values) -> None:
    for flag in (
        "rollout.batch_size",
        "rollout.micro_batch_size",
        "rollout.n_samples_per_prompt",
        "train.batch_size",
        "train.micro_batch_size",
        "actor.num_nodes",
        "actor.num_gpus_per_node",
        "vllm.num_engines",
        "vllm.tensor_parallel_size",
        "ds.ring_attn_size",
        "ds.tensor_parallel_size",
    ):
        if values[flag] < 1:
            refuse(flag, "must be at least 1", values[flag], "a positive number")


def _groups(values: Values) -> None:
    estimator, size = values[ESTIMATOR], values["rollout.n_samples_per_prompt"]
    if size > 1:
        return
    for name, on in (
        (f"estimator {estimator}", estimator in _GROUPED or is_rule(estimator)),
        ("--algo.dynamic_filtering_enable", values["algo.dynamic_filtering_enable"]),
    ):
        if on:
            refuse(
                "rollout.n_samples_per_prompt",
                f"must be greater than 1 for {name}, which compares the rollouts of one prompt",
                size,
                "e.g. 8",
            )


def _modes(values: Values) -> None:
    """Combinations that OpenRLHF asserts against in its own `__main__`, trainer and loss."""
    if values["train.async_enable"] and values["vllm.enable_sleep"] and values["train.colocate_all"]:
        refuse("vllm.enable_sleep", "does not go with --train.async_enable", True, "only one of the two")
    if values["train.partial_rollout_enable"] and not values["train.async_enable"]:
        refuse("train.partial_rollout_enable", "needs --train.async_enable", True, "both or neither")
    generated, batch = values["rollout.vllm_generate_batch_size"], values["rollout.batch_size"]
    if (generated or 0) > batch and not values["train.async_enable"]:
        refuse(
            "rollout.vllm_generate_batch_size",
            f"may exceed rollout.batch_size ({batch}) only with --train.async_enable",
            generated,
            f"at most {batch}",
        )
    if values["data.max_images_per_prompt"] > 0:
        if values[ESTIMATOR] == "gae":
            refuse(ESTIMATOR, "has a critic, which cannot read images", "gae", "e.g. group_norm")
        if values["ds.packing_samples"] or values["train.dynamic_batch_enable"]:
            refuse("ds.packing_samples", "does not go with images in prompts", True, "no packing, no dynamic batch")
    if values["actor.dual_clip"] is not None and values["actor.dual_clip"] <= 1:
        refuse("actor.dual_clip", "must be greater than 1", values["actor.dual_clip"], "e.g. 3.0")
    low, high = values["algo.dynamic_filtering_range"]
    if values["algo.dynamic_filtering_enable"]:
        if low >= high:
            refuse("algo.dynamic_filtering_range", "must be LOW HIGH with LOW < HIGH", (low, high), "e.g. 0 1")
        need_graded(values, "algo.dynamic_filtering_enable")


def _evaluation(values: Values) -> None:
    if values["eval.dataset"]:
        need_graded(values, "eval.dataset")
    elif values["eval.before_train"] and not values["eval.suite"]:
        refuse("eval.before_train", "needs something to evaluate on", True, "--eval.dataset or --eval.suite too")
    if values["eval.suite"] and values["train.async_enable"]:
        refuse("eval.suite", "does not go with --train.async_enable", values["eval.suite"], "only one of the two")
    if values["eval.suite"] and values["eval.steps"] < 1 and not values["eval.before_train"]:
        refuse("eval.steps", "must be at least 1 for --eval.suite", values["eval.steps"], "e.g. 5")
    for flag in ("eval.k", "eval.limit"):
        if values[flag] < 0:
            refuse(flag, "must be at least 0", values[flag], "0, or a positive number")
    if values["eval.before_train"] and values["train.async_enable"]:
        refuse("eval.before_train", "does not go with --train.async_enable", True, "only one of the two")


def _correction(values: Values) -> None:
    prefix = "algo.advantage.is_correction_"
    level, mode, gating, threshold = (values[prefix + name] for name in ("level", "mode", "gating", "threshold"))
    if len(threshold) > 2:
        refuse(f"{prefix}threshold", "takes HIGH or LOW HIGH", threshold, "one or two numbers")
    if mode == "clip" and (level == "seq" or gating != "ratio"):
        refuse(
            f"{prefix}mode",
            f"clip clamps token ratios, so not with level {level} and gating {gating}",
            mode,
            "mask, or level token with gating ratio",
        )
    if gating != "ratio" and level != "off" and len(threshold) == 2 and threshold[0] > 0:
        refuse(f"{prefix}threshold", f"is an upper bound only for gating {gating}", threshold, "a single HIGH")


RULES: tuple[Callable[[Values], None], ...] = (
    _needed,
    _counts,
    _groups,
    modes,
    _modes,
    _evaluation,
    _correction,
    placement,
    batches,
    rule,
    dump,
    code,
    models,
    data,
    suite,
)
