"""All checks of a command line, in order. They find, before anything starts, what would fail with Ray and vLLM running.

This folder refuses a command line only if the run is certain to fail later, or certain to train nothing. It does so
only where OpenRLHF 0.11.2 is silent until Ray runs; problems that OpenRLHF's main asserts are left to it.
"""

from collections.abc import Callable, Iterator

from openrlhf_shear.config.refusal import Finding, Findings, Note, refusal
from openrlhf_shear.line.run import OF_GROUPS, Run
from openrlhf_shear.preflight.inputs import code, suite
from openrlhf_shear.preflight.layout import batches, parallel, placement
from openrlhf_shear.preflight.memory import memory
from openrlhf_shear.preflight.models import Models, adapters, models
from openrlhf_shear.preflight.outputs import checkpoints, folders
from openrlhf_shear.preflight.ranges import ranges
from openrlhf_shear.preflight.resources import disks, limits, stack, temporary_folder
from openrlhf_shear.preflight.rewards import shaping, threshold
from openrlhf_shear.preflight.rows import data
from openrlhf_shear.preflight.rules import dump, long_search, rule


def check(run: Run, files: Models, findings: Findings) -> dict[str, object] | None:
    """Run every check and note its findings. Quick checks run first; the check that reads every row runs last.

    Return the facts of the training rows that a run which resumes is compared by (`rows.data`).
    """
    if not __debug__:
        findings.notes.append(Note("python -O drops OpenRLHF's own checks of the command line, which are asserts"))
    facts: list[dict[str, object] | None] = []
    findings.take(*(look(run) for look in CHECKS), *(look(run, files) for look in OF_MODELS), _rows(run, facts))
    return next(iter(facts), None)


def _rows(run: Run, facts: list) -> Iterator[Finding]:
    facts.append((yield from data(run)))


def _needed(run: Run) -> Iterator[Finding]:
    if not run.actor.model_name_or_path:
        yield refusal("actor.model_name_or_path", "is needed", None, "a model folder or a hub id")
    if not run.data.prompt_dataset:
        yield refusal("data.prompt_dataset", "is needed", None, "a file, a folder or a hub id")
    if not (run.graded or run.reward.model_name_or_path):
        kinds = "math, code, a .py file with reward_func or a URL"
        remedy = f"{kinds}, --train.agent_func_path, or --reward.model_name_or_path"
        yield refusal("reward.remote_url", "is needed, or nothing gives a reward", None, remedy)
    if not run.vllm.num_engines:
        yield refusal("vllm.num_engines", "must be at least 1, as only vLLM generates", run.vllm.num_engines, "e.g. 1")


def _groups(run: Run) -> Iterator[Finding]:
    estimator, size = run.estimator, run.rollout.n_samples_per_prompt
    if size == 1 and (run.has_rule or estimator in OF_GROUPS):
        problem = f"must be greater than 1 for estimator {estimator}, which compares the rollouts of one prompt"
        yield refusal("rollout.n_samples_per_prompt", problem, size, "e.g. 8")


def _modes(run: Run) -> Iterator[Finding]:
    """Refuse combinations of OpenRLHF's flags that its main accepts, or refuses under the name of another flag."""
    if run.data.max_images_per_prompt > 0 and run.train.dynamic_batch_enable:
        # OpenRLHF's main refuses packing with images, but turns packing on for dynamic batches only after that check.
        yield refusal(
            "train.dynamic_batch_enable", "packs samples, which does not go with images in prompts", True, "neither"
        )
    if run.actor.dual_clip is not None and run.actor.dual_clip <= 1:
        yield refusal("actor.dual_clip", "must be greater than 1", run.actor.dual_clip, "e.g. 3.0")
    if run.algo.kl.target is not None and run.algo.kl.init_coef == 0:
        yield refusal(
            "algo.kl.target", "needs --algo.kl.init_coef above 0, which it adapts", run.algo.kl.target, "both"
        )
    if run.critic.freezing_steps >= 0 and run.estimator != "gae":
        problem = f"freezes the policy while a critic learns; estimator {run.estimator} has no critic"
        yield refusal("critic.freezing_steps", problem, run.critic.freezing_steps, "-1, or estimator gae")
    generated, batch = run.rollout.vllm_generate_batch_size, run.rollout.batch_size
    if generated is not None and generated < batch:
        problem = f"must be at least rollout.batch_size ({batch}), or steps are short of prompts"
        yield refusal("rollout.vllm_generate_batch_size", problem, generated, f"{batch}, or no such flag")


_HIGH_RATE = 1e-3  # of Adam; the usual rates are 1e-6, and 1e-5 to 1e-4 with LoRA


def _rates(run: Run) -> Iterator[Finding]:
    models = ("actor", "critic") if run.estimator == "gae" else ("actor",)
    for flag in (f"{model}.adam.lr" for model in models):
        if run.flags[flag] > _HIGH_RATE:
            message = f"--{flag} {run.flags[flag]:g} is so high that most models break in the first step"
            yield Note(f"{message}; use e.g. 1e-6, or 1e-5 with LoRA")


def _evaluation(run: Run) -> Iterator[Finding]:
    if run.eval.before_train and not (run.eval.dataset or run.eval.suite):
        yield refusal("eval.before_train", "needs something to evaluate on", True, "--eval.dataset or --eval.suite too")
    if run.eval.suite and run.eval.steps < 1 and not run.eval.before_train:
        yield refusal("eval.steps", "must be at least 1 for --eval.suite", run.eval.steps, "e.g. 5")
    if run.eval.steps > 0 and not (run.eval.dataset or run.eval.suite):
        yield Note("--eval.steps has no effect without --eval.dataset or --eval.suite; use one of them")
    if run.eval.dataset and run.eval.temperature == 0 and run.eval.n_samples_per_prompt > 1:
        count = run.eval.n_samples_per_prompt
        message = f"--eval.temperature 0 makes the {count} rollouts of an evaluation prompt alike"
        yield Note(f"{message}; use --eval.n_samples_per_prompt 1")


def _correction(run: Run) -> Iterator[Finding]:
    """Refuse what OpenRLHF's `PolicyLoss` refuses only after the models are loaded."""
    prefix = "algo.advantage.is_correction_"
    level, mode, gating, threshold = (run.flags[prefix + name] for name in ("level", "mode", "gating", "threshold"))
    if mode == "clip" and (level == "seq" or gating != "ratio"):
        problem = f"clip clamps token ratios, so it cannot be used with level {level} and gating {gating}"
        yield refusal(f"{prefix}mode", problem, mode, "mask, or level token with gating ratio")
    low, high = (0.0, *threshold)[-2:]
    if level != "off" and not 0 <= low < high:
        yield refusal(f"{prefix}threshold", "must be HIGH, or LOW HIGH with LOW < HIGH", threshold, "e.g. 0.5 5.0")
    if gating != "ratio" and level != "off" and len(threshold) == 2 and threshold[0] > 0:
        yield refusal(f"{prefix}threshold", f"is an upper bound only for gating {gating}", threshold, "a single HIGH")


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
        yield refusal("rollout.top_p", problem, top_p, "--rollout.top_p 1, --rollout.temperature 1, or no correction")
    shown = "" if temperature == 1.0 else "; with this temperature there is no vllm_kl either"
    yield Note(
        f"rollout.top_p {top_p:g}: engines draw from the nucleus, but the PPO ratio covers the whole vocabulary; no "
        f"importance correction makes up for that{shown}"
    )


CHECKS: tuple[Callable[[Run], Iterator[Finding]], ...] = (
    *(_needed, ranges, _groups, _modes, _rates, _evaluation, _correction, _engine_policy),
    *(placement, parallel, batches, rule, dump, long_search, suite, code, shaping, threshold),
    *(folders, checkpoints, temporary_folder, limits, stack),
)
OF_MODELS: tuple[Callable[[Run, Models], Iterator[Finding]], ...] = (models, adapters, memory, disks)
