"""Credit rules: modes they do not know, a rule from outside that cannot be had, the process reward model it needs."""

from __future__ import annotations

from openrlhf_shear.config import ADVANTAGE_RULES, PRM_RULES, CreditSpec, is_outside, is_rule
from openrlhf_shear.preflight.layout import fits_beside_actor
from openrlhf_shear.preflight.refusal import ESTIMATOR, Values, refuse


def modes(values: Values) -> None:
    estimator = values[ESTIMATOR]
    if not is_rule(estimator):
        return
    for flag, unsupported, mode, remedy in (
        ("ds.ring_attn_size", values["ds.ring_attn_size"] > 1, "ring attention", "1"),
        ("ds.tensor_parallel_size", values["ds.tensor_parallel_size"] > 1, "a tensor parallel actor", "1 (ZeRO)"),
        ("train.async_enable", values["train.async_enable"], "asynchronous training", "the synchronous trainer"),
        ("data.max_images_per_prompt", values["data.max_images_per_prompt"] > 0, "images in prompts", "0"),
    ):
        if unsupported:
            refuse(flag, f"means {mode}, which estimator {estimator} does not support", values[flag], remedy)


def rule(values: Values) -> None:
    """A user's rule is made here once, so that a mistake in it shows before anything starts."""
    estimator = values[ESTIMATOR]
    if not is_rule(estimator):
        return
    needs_prm, makes_advantages = estimator in PRM_RULES, estimator in ADVANTAGE_RULES
    if is_outside(estimator):
        from openrlhf_shear.credit.registry import load_rule

        found = load_rule(CreditSpec(estimator))
        needs_prm = "prm_scores" in getattr(found, "needs", ())
        makes_advantages = getattr(found, "makes_advantages", False)
    if makes_advantages:
        _own_advantages(values, estimator)
    if needs_prm:
        if not values["prm.model_name_or_path"]:
            refuse(
                "prm.model_name_or_path",
                f"is needed: estimator {estimator} reads the step scores of a process reward model",
                None,
                "a folder or hub id, e.g. Qwen/Qwen2.5-Math-PRM-7B",
            )
        if values["prm.offload"] and values["ds.zero_stage"] != 3:
            refuse("prm.offload", "is ZeRO-3's", True, "--ds.zero_stage 3 too")
        if values["train.colocate_all"]:
            fits_beside_actor(values, "prm")


def dump(values: Values) -> None:
    """Rollouts are written with what is made of them before the update."""
    flag, every, estimator = "shear.dump_rollouts_every", values["dump_rollouts_every"], values[ESTIMATOR]
    if every < 0:
        refuse(flag, "must be at least 0", every, "a number of steps, e.g. 20, or 0 for never")
    if every == 0:
        return
    if not is_rule(estimator):
        grpo = "--algo.advantage.estimator uniform, which trains just as group_norm does, or shear"
        refuse(flag, f"needs a credit rule, which {estimator} is not", every, grpo)
    if acts_in_update(CreditSpec(estimator)):
        problem = f"has nothing to show of estimator {estimator}, which changes advantages only in the update"
        refuse(flag, problem, every, "0, or another credit rule")


def acts_in_update(spec: CreditSpec) -> bool:
    """Whether its rule is an `UpdateRule`."""
    if not is_outside(spec.estimator):
        return spec.estimator == "entropy_adv"
    from openrlhf_shear.credit.registry import load_rule
    from openrlhf_shear.credit.rule import UpdateRule

    return isinstance(load_rule(spec), UpdateRule)


def _own_advantages(values: Values, estimator: str) -> None:
    reason = f"would be without effect: estimator {estimator} makes advantages of its own, from scores"
    for flag in ("reward.overlong_buffer_len", "reward.stop_properly_penalty_coef"):
        if values[flag] is not None:
            refuse(flag, reason, values[flag], "a reward function that knows lengths")
    if values["algo.kl.init_coef"] > 0 and not values["algo.kl.use_loss"]:
        refuse("algo.kl.init_coef", f"as a reward {reason}", values["algo.kl.init_coef"], "0, or --algo.kl.use_loss")
