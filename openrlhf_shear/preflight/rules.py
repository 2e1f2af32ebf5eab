"""Checks of credit rules: unsupported modes, idle flags, long searches, and missing process reward models."""

from collections.abc import Iterator

from openrlhf_shear.config.refusal import Finding, Note, refusal
from openrlhf_shear.config.rules import LAB_ALONE
from openrlhf_shear.line.run import ESTIMATOR, Run
from openrlhf_shear.preflight.layout import fits_beside_actor

_MANY_PAIRS = 20_000_000  # pairs of spans in a group above which the search is slow
_SECONDS_A_MILLION = 0.13


def rule(run: Run) -> Iterator[Finding]:
    """Refuse flags that do not go with the credit rule, and what the rule needs and the run does not have."""
    if run.spec is None:
        return
    estimator, traits = run.estimator, run.traits
    if run.ds.deepcompile:
        problem = f"means compiled code, which hooks cannot look into; estimator {estimator} does not support it"
        yield refusal("ds.deepcompile", problem, True, "no such flag")
    if lab_alone := traits.needs.intersection(LAB_ALONE):  # of a built-in rule; `load_rule` has refused the others
        problem = f"needs {', '.join(sorted(lab_alone))}, which only the credit lab gives"
        yield refusal(ESTIMATOR, problem, estimator, "shear-lab, or another rule")
        return
    if traits.kind == "advantages":
        yield from _own_advantages(run)
    yield from _models_read(run)
    if "prm_scores" in traits.needs:
        if not run.prm.model_name_or_path:
            problem = f"is needed: estimator {estimator} reads the step scores of a process reward model"
            remedy = "a folder or hub id, e.g. Qwen/Qwen2.5-Math-PRM-7B"
            yield refusal("prm.model_name_or_path", problem, None, remedy)
        if run.prm.offload and run.ds.zero_stage != 3:
            yield refusal("prm.offload", "needs ZeRO-3", True, "--ds.zero_stage 3 too")
        if run.train.colocate_all:
            yield from fits_beside_actor(run, "prm")


def long_search(run: Run) -> Iterator[Note]:
    """Warn if the span search of a group of the longest responses takes long, with an estimate of the seconds."""
    if run.spans is None:
        return
    tokens = min(run.rollout.max_new_tokens or run.data.max_len, run.data.max_len)
    right = run.rollout.n_samples_per_prompt // 2
    wrong = run.rollout.n_samples_per_prompt - right
    if right * wrong * (tokens / run.spans.stride) ** 2 <= _MANY_PAIRS:
        return
    from openrlhf_shear.transport import span_starts  # late: torch

    spans = len(span_starts(tokens, run.spans))
    if (pairs := right * wrong * spans**2) > _MANY_PAIRS:
        flag = f"--{run.spans.section}.max_spans, e.g. 256"
        remedy = flag if run.spec.name.built_in else "a larger stride or window of the rule"
        seconds = pairs / 1e6 * _SECONDS_A_MILLION
        yield Note(
            f"{run.spec.estimator}: a group whose responses all have {tokens} tokens has {pairs / 1e6:.0f} million "
            f"pairs of spans to search, up to {seconds:.0f} s on an H200 (an estimate); use {remedy}"
        )


def dump(run: Run) -> Iterator[Finding]:
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
        remedy = "e.g. 1e-3 with --algo.kl.use_loss"
        yield refusal("algo.kl.init_coef", problem, run.algo.kl.init_coef, remedy)
    if "lm_head" not in needs:
        return
    why = f"cuts the LM head into shards, and estimator {estimator} reads it whole"
    if run.ds.zero_stage == 3:
        yield refusal("ds.zero_stage", why, 3, "2")
    if run.ds.tensor_parallel_size > 1:
        yield refusal("ds.tensor_parallel_size", why, run.ds.tensor_parallel_size, "1")


def _own_advantages(run: Run) -> Iterator[Finding]:
    reason = f"would have no effect: estimator {run.estimator} makes its own advantages, from scores"
    for flag in ("reward.overlong_buffer_len", "reward.stop_properly_penalty_coef"):
        if run.flags[flag] is not None:
            yield refusal(flag, reason, run.flags[flag], "a reward function that knows lengths")
    clip = tuple(run.reward.clip_range)
    if clip != (-10, 10):  # OpenRLHF's default
        yield refusal("reward.clip_range", reason, clip, "a reward function that clips")
    if run.algo.kl.init_coef > 0 and not run.algo.kl.use_loss:
        remedy = "--algo.kl.use_loss" if "ref_log_probs" in run.traits.needs else "0, or --algo.kl.use_loss"
        yield refusal("algo.kl.init_coef", f"as a reward {reason}", run.algo.kl.init_coef, remedy)
