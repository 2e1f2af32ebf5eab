"""All checks of a command line, in order. They find, before anything starts, what would fail with Ray and vLLM running.

This folder refuses a command line only if the run is certain to fail later, or certain to train nothing. It does so
only where OpenRLHF 0.11.2 is silent until Ray runs; problems that OpenRLHF's main asserts are left to it.
"""

from collections.abc import Callable, Iterator

from openrlhf_shear.config.names import is_rule
from openrlhf_shear.config.refusal import Finding, Findings, Told, refusal
from openrlhf_shear.line.values import ESTIMATOR, OF_GROUPS, Values, graded
from openrlhf_shear.preflight.adapters import adapters
from openrlhf_shear.preflight.inputs import code, models, suite
from openrlhf_shear.preflight.layout import batches, parallel, placement
from openrlhf_shear.preflight.memory import memory
from openrlhf_shear.preflight.outputs import checkpoints, folders
from openrlhf_shear.preflight.ranges import ranges
from openrlhf_shear.preflight.resources import disks, limits, own_ray, temporary_folder
from openrlhf_shear.preflight.rewards import shaping, threshold
from openrlhf_shear.preflight.rows import data
from openrlhf_shear.preflight.rules import dump, modes, rule
from openrlhf_shear.preflight.sockets import socket_problem
from openrlhf_shear.preflight.stack import stack


def check(values: Values, findings: Findings) -> None:
    """Run every check and note its findings. Quick checks run first; the check that reads every row runs last.

    Args:
        values: OpenRLHF's flags by dotted name. The estimator is still the given name ("shear").
    """
    if not __debug__:
        findings.told.append(Told("python -O drops OpenRLHF's own checks of the command line, which are asserts"))
    for look in CHECKS:
        findings.take(look(values))


def _needed(values: Values) -> Iterator[Finding]:
    if not values["actor.model_name_or_path"]:
        yield refusal("actor.model_name_or_path", "is needed", None, "a model folder or a hub id")
    if not values["data.prompt_dataset"]:
        yield refusal("data.prompt_dataset", "is needed", None, "a file, a folder or a hub id")
    if not (graded(values) or values["reward.model_name_or_path"]):
        kinds = "math, code, a .py file with reward_func or a URL"
        remedy = f"{kinds}, --train.agent_func_path, or --reward.model_name_or_path"
        yield refusal("reward.remote_url", "is needed, or nothing gives a reward", None, remedy)
    if not values["vllm.num_engines"]:
        yield refusal(
            "vllm.num_engines", "must be at least 1, as only vLLM generates", values["vllm.num_engines"], "e.g. 1"
        )


def _sockets(values: Values) -> Iterator[Finding]:
    if own_ray() and (problem := socket_problem()):
        yield problem


def _groups(values: Values) -> Iterator[Finding]:
    estimator, size = values[ESTIMATOR], values["rollout.n_samples_per_prompt"]
    if size == 1 and (is_rule(estimator) or estimator in OF_GROUPS):
        problem = f"must be greater than 1 for estimator {estimator}, which compares the rollouts of one prompt"
        yield refusal("rollout.n_samples_per_prompt", problem, size, "e.g. 8")


def _modes(values: Values) -> Iterator[Finding]:
    """Refuse combinations of OpenRLHF's flags that its main accepts, or refuses under the name of another flag."""
    if values["data.max_images_per_prompt"] > 0 and values["train.dynamic_batch_enable"]:
        # OpenRLHF's main refuses packing with images, but turns packing on for dynamic batches only after that check.
        yield refusal(
            "train.dynamic_batch_enable", "packs samples, which does not go with images in prompts", True, "neither"
        )
    if values["actor.dual_clip"] is not None and values["actor.dual_clip"] <= 1:
        yield refusal("actor.dual_clip", "must be greater than 1", values["actor.dual_clip"], "e.g. 3.0")
    if values["algo.kl.target"] is not None and values["algo.kl.init_coef"] == 0:
        yield refusal(
            "algo.kl.target", "needs --algo.kl.init_coef above 0, which it adapts", values["algo.kl.target"], "both"
        )
    if values["critic.freezing_steps"] >= 0 and values[ESTIMATOR] != "gae":
        problem = f"freezes the policy while a critic learns; estimator {values[ESTIMATOR]} has no critic"
        yield refusal("critic.freezing_steps", problem, values["critic.freezing_steps"], "-1, or estimator gae")
    generated, batch = values["rollout.vllm_generate_batch_size"], values["rollout.batch_size"]
    if generated is not None and generated < batch:
        problem = f"must be at least rollout.batch_size ({batch}), or steps are short of prompts"
        yield refusal("rollout.vllm_generate_batch_size", problem, generated, f"{batch}, or no such flag")


_HIGH_RATE = 1e-3  # of Adam; the usual rates are 1e-6, and 1e-5 to 1e-4 with LoRA


def _rates(values: Values) -> Iterator[Finding]:
    models = ("actor", "critic") if values[ESTIMATOR] == "gae" else ("actor",)
    for flag in (f"{model}.adam.lr" for model in models):
        if values[flag] > _HIGH_RATE:
            told = f"--{flag} {values[flag]:g} is so high that most models break in the first step"
            yield Told(f"{told}; use e.g. 1e-6, or 1e-5 with LoRA")


def _evaluation(values: Values) -> Iterator[Finding]:
    if values["eval.before_train"] and not (values["eval.dataset"] or values["eval.suite"]):
        yield refusal("eval.before_train", "needs something to evaluate on", True, "--eval.dataset or --eval.suite too")
    if values["eval.suite"] and values["eval.steps"] < 1 and not values["eval.before_train"]:
        yield refusal("eval.steps", "must be at least 1 for --eval.suite", values["eval.steps"], "e.g. 5")
    if values["eval.steps"] > 0 and not (values["eval.dataset"] or values["eval.suite"]):
        yield Told("--eval.steps has no effect without --eval.dataset or --eval.suite; use one of them")
    if values["eval.dataset"] and values["eval.temperature"] == 0 and values["eval.n_samples_per_prompt"] > 1:
        count = values["eval.n_samples_per_prompt"]
        told = f"--eval.temperature 0 makes the {count} rollouts of an evaluation prompt alike"
        yield Told(f"{told}; use --eval.n_samples_per_prompt 1")


def _correction(values: Values) -> Iterator[Finding]:
    """Refuse what OpenRLHF's `PolicyLoss` refuses only after the models are loaded."""
    prefix = "algo.advantage.is_correction_"
    level, mode, gating, threshold = (values[prefix + name] for name in ("level", "mode", "gating", "threshold"))
    if mode == "clip" and (level == "seq" or gating != "ratio"):
        problem = f"clip clamps token ratios, so it cannot be used with level {level} and gating {gating}"
        yield refusal(f"{prefix}mode", problem, mode, "mask, or level token with gating ratio")
    low, high = (0.0, *threshold)[-2:]
    if level != "off" and not 0 <= low < high:
        yield refusal(f"{prefix}threshold", "must be HIGH, or LOW HIGH with LOW < HIGH", threshold, "e.g. 0.5 5.0")
    if gating != "ratio" and level != "off" and len(threshold) == 2 and threshold[0] > 0:
        yield refusal(f"{prefix}threshold", f"is an upper bound only for gating {gating}", threshold, "a single HIGH")


def _engine_policy(values: Values) -> Iterator[Finding]:
    """Check that the engines' log-probs can be compared with the trainer's.

    The trainer's log-probs include the temperature and not top-p. vLLM's include both or neither.
    """
    corrects = values["algo.advantage.is_correction_level"] != "off"
    if corrects and values["vllm.no_logprobs"]:
        problem = "leaves --algo.advantage.is_correction_level nothing to correct with"
        yield refusal("vllm.no_logprobs", problem, True, "one of the two")
    top_p, temperature = values["rollout.top_p"], values["rollout.temperature"]
    if top_p == 1.0:
        return
    if corrects and temperature != 1.0:
        problem = "does not go with --algo.advantage.is_correction_level at a temperature other than 1"
        yield refusal("rollout.top_p", problem, top_p, "--rollout.top_p 1, --rollout.temperature 1, or no correction")
    shown = "" if temperature == 1.0 else "; with this temperature there is no vllm_kl either"
    yield Told(
        f"rollout.top_p {top_p:g}: engines draw from the nucleus, but the PPO ratio covers the whole vocabulary; no "
        f"importance correction makes up for that{shown}"
    )


CHECKS: tuple[Callable[[Values], Iterator[Finding]], ...] = (
    *(
        _needed,
        _sockets,
        limits,
        temporary_folder,
        stack,
        ranges,
        _groups,
        modes,
        _modes,
        _rates,
        _evaluation,
        _correction,
        _engine_policy,
    ),
    *(placement, parallel, batches, rule, dump, shaping, threshold, folders, checkpoints),
    *(code, models, adapters, suite, memory, disks, data),
)
