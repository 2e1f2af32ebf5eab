"""Checks of credit rules: unsupported modes, user rules that cannot be loaded, and missing process reward models."""

from collections.abc import Iterator
from functools import lru_cache

from openrlhf_shear.config import CreditSpec
from openrlhf_shear.config.names import is_rule, parse_rule
from openrlhf_shear.config.refusal import Finding, Told, refusal
from openrlhf_shear.config.rules import Traits
from openrlhf_shear.config.spans import SpanCut
from openrlhf_shear.line.values import ESTIMATOR, Values
from openrlhf_shear.preflight.layout import fits_beside_actor

_MANY_PAIRS = 20_000_000  # pairs of spans in a group above which the search is slow
_SECONDS_A_MILLION = 0.13


def modes(values: Values) -> Iterator[Finding]:
    estimator = values[ESTIMATOR]
    if not is_rule(estimator):
        return
    if values["ds.deepcompile"]:
        problem = f"means compiled code, which hooks cannot look into; estimator {estimator} does not support it"
        yield refusal("ds.deepcompile", problem, True, "no such flag")


def traits(rule: CreditSpec | str) -> Traits:
    """Return the traits of a credit rule; by the name of a built-in rule, those with its default knobs.

    This constructs a user's rule; for a built-in rule it needs no torch.

    Raises:
        ValueError: the name is not a rule's, or the rule cannot be loaded.
    """
    if isinstance(rule, CreditSpec):
        estimator, known = rule.estimator, rule.traits
    else:
        entry = parse_rule(rule).built_in
        estimator, known = rule, entry and entry.traits
    if known:
        return known
    from openrlhf_shear.credit.registry import traits_of

    return traits_of(_outside(estimator))


@lru_cache(maxsize=1)
def _outside(estimator: str):
    """Return a user's rule, constructed once in a process: its constructor may be slow."""
    from openrlhf_shear.credit.registry import load_rule

    return load_rule(CreditSpec(estimator))


def forget() -> None:
    """Drop the cached rule, so that its next use constructs it again: its file may have changed."""
    _outside.cache_clear()


def needs_prm(estimator: str) -> bool:
    """Return whether the estimator is a credit rule that needs a process reward model."""
    return is_rule(estimator) and "prm_scores" in traits(estimator).needs


def rule(values: Values) -> Iterator[Finding]:
    """Check the credit rule. This constructs a user's rule, so that its errors show before anything starts."""
    estimator = values[ESTIMATOR]
    if not is_rule(estimator):
        return
    wanted = traits(estimator)
    if wanted.lab_alone:  # of a built-in rule, which has not been made: `credit.registry.load_rule` refuses the others
        problem = f"needs {', '.join(wanted.lab_alone)}, which only the credit lab gives"
        yield refusal(ESTIMATOR, problem, estimator, "shear-lab, or another rule")
        return
    if wanted.kind == "advantages":
        yield from _own_advantages(values, estimator, wanted.needs)
    yield from _models_read(values, estimator, wanted.needs)
    if "prm_scores" in wanted.needs:
        if not values["prm.model_name_or_path"]:
            problem = f"is needed: estimator {estimator} reads the step scores of a process reward model"
            remedy = "a folder or hub id, e.g. Qwen/Qwen2.5-Math-PRM-7B"
            yield refusal("prm.model_name_or_path", problem, None, remedy)
        if values["prm.offload"] and values["ds.zero_stage"] != 3:
            yield refusal("prm.offload", "needs ZeRO-3", True, "--ds.zero_stage 3 too")
        if values["train.colocate_all"]:
            yield from fits_beside_actor(values, "prm")


def long_search(values: Values, spec: CreditSpec | None) -> Iterator[Told]:
    """Warn if the span search of a group of the longest responses takes long, with an estimate of the seconds."""
    config = None if spec is None else _searched(spec)
    if config is None:
        return
    tokens = min(values["rollout.max_new_tokens"] or values["data.max_len"], values["data.max_len"])
    right = values["rollout.n_samples_per_prompt"] // 2
    wrong = values["rollout.n_samples_per_prompt"] - right
    if right * wrong * (tokens / config.stride) ** 2 <= _MANY_PAIRS:
        return
    from openrlhf_shear.transport import span_starts  # late: torch

    spans = len(span_starts(tokens, config))
    if (pairs := right * wrong * spans**2) > _MANY_PAIRS:
        flag = f"--{config.section}.max_spans, e.g. 256"
        remedy = flag if spec.name.built_in else "a larger stride or window of the rule"
        seconds = pairs / 1e6 * _SECONDS_A_MILLION
        yield Told(
            f"{spec.estimator}: a group whose responses all have {tokens} tokens has {pairs / 1e6:.0f} million pairs "
            f"of spans to search, up to {seconds:.0f} s on an H200 (an estimate); use {remedy}"
        )


def _searched(spec: CreditSpec) -> SpanCut | None:
    """Return how a rule that searches cuts spans; None if it does not search, or has no `SpanCut` as `config`."""
    if spec.name.built_in:
        config = spec.config
        return config if isinstance(config, SpanCut) and "hidden_states" not in config.idle_needs() else None
    made = _outside(spec.estimator)
    config = getattr(made, "config", None)
    return config if "hidden_states" in made.needs and isinstance(config, SpanCut) else None


def dump(values: Values) -> Iterator[Finding]:
    """Refuse rollout dumps for an estimator without token weights: dumps are written before the update."""
    flag, every, estimator = "credit.dump_rollouts_every", values["dump_rollouts_every"], values[ESTIMATOR]
    if every < 0:
        yield refusal(flag, "must be at least 0", every, "a number of steps, e.g. 20, or 0 for never")
    if every <= 0:
        return
    if not is_rule(estimator):
        grpo = "--algo.advantage.estimator uniform, which trains just as group_norm does, or shear"
        yield refusal(flag, f"needs a credit rule, which {estimator} is not", every, grpo)
    elif traits(estimator).kind == "update":
        problem = f"has nothing to show for estimator {estimator}, which changes advantages only in the update"
        yield refusal(flag, problem, every, "0, or another credit rule")


def _models_read(values: Values, estimator: str, needs: frozenset[str]) -> Iterator[Finding]:
    if "ref_log_probs" in needs and values["algo.kl.init_coef"] <= 0:
        problem = f"must be above 0: estimator {estimator} reads a reference model, which OpenRLHF loads only then"
        remedy = "e.g. 1e-3 with --algo.kl.use_loss"
        yield refusal("algo.kl.init_coef", problem, values["algo.kl.init_coef"], remedy)
    if "lm_head" not in needs:
        return
    why = f"cuts the LM head into shards, and estimator {estimator} reads it whole"
    if values["ds.zero_stage"] == 3:
        yield refusal("ds.zero_stage", why, 3, "2")
    if values["ds.tensor_parallel_size"] > 1:
        yield refusal("ds.tensor_parallel_size", why, values["ds.tensor_parallel_size"], "1")


def _own_advantages(values: Values, estimator: str, needs: frozenset[str]) -> Iterator[Finding]:
    reason = f"would have no effect: estimator {estimator} makes its own advantages, from scores"
    for flag in ("reward.overlong_buffer_len", "reward.stop_properly_penalty_coef"):
        if values[flag] is not None:
            yield refusal(flag, reason, values[flag], "a reward function that knows lengths")
    clip = tuple(values["reward.clip_range"])
    if clip != (-10, 10):  # OpenRLHF's default
        yield refusal("reward.clip_range", reason, clip, "a reward function that clips")
    if values["algo.kl.init_coef"] > 0 and not values["algo.kl.use_loss"]:
        remedy = "--algo.kl.use_loss" if "ref_log_probs" in needs else "0, or --algo.kl.use_loss"
        yield refusal("algo.kl.init_coef", f"as a reward {reason}", values["algo.kl.init_coef"], remedy)
