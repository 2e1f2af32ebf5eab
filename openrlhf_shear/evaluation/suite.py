"""What evaluations know of a training run: `--eval.suite` as a plan, and run.json, by which reports group runs."""

import json
from argparse import Namespace
from pathlib import Path

from openrlhf_shear.config import CreditSpec
from openrlhf_shear.config.secrets import hidden
from openrlhf_shear.data.files import KINDS, looks_local
from openrlhf_shear.data.prompts import PromptFormat
from openrlhf_shear.data.writing import write_text
from openrlhf_shear.sampling.benchmarks import Benchmark, custom, load_questions, parse_names
from openrlhf_shear.sampling.plan import Plan
from openrlhf_shear.sampling.sampler import Sampling

SUITE_AVERAGE = "suite/average"  # the metric that chooses the best checkpoint


def suite_benchmarks(suite: str, reward: str | None, prompt_key: str, label_key: str | None) -> list[Benchmark]:
    """Return the benchmarks of `--eval.suite`: the paper's five, some names, or a file that the run's reward grades.

    Raises ValueError for an unknown name, or if the file's reward cannot grade single completions.
    """
    if suite.endswith(KINDS):
        return [custom(suite, reward or "", prompt_key, label_key or "", 1)]
    return parse_names(suite)


def suite_plan(args: Namespace) -> Plan:
    """Return the plan of each evaluation of a training run; `args` is OpenRLHF's nested namespace.

    Raises:
        DataError: a benchmark cannot be read.
        ValueError: as `suite_benchmarks`.
    """
    data, chosen, reward = args.data, args.eval, args.reward.remote_url
    reward = reward[0] if isinstance(reward, list) else reward
    benchmarks = suite_benchmarks(chosen.suite, reward, data.input_key, data.label_key)
    folder = Path(chosen.data_dir) if chosen.data_dir else None
    return Plan(
        model=args.actor.model_name_or_path,
        questions=[q for benchmark in benchmarks for q in load_questions(benchmark, folder, chosen.limit or None)],
        tasks={benchmark.name: benchmark.task for benchmark in benchmarks},
        ks={benchmark.name: chosen.k or benchmark.k for benchmark in benchmarks},
        sampling=Sampling(chosen.temperature, 1.0, args.rollout.max_new_tokens or data.max_len, args.train.seed),
        prompt_format=PromptFormat(data.apply_chat_template, data.input_template),
    )


FILE = "run.json"


def run_facts(args: Namespace, prompts: str | None = None, eval_prompts: str | None = None) -> dict:
    """Return method, model, task, seed, group size, SHEAR's knobs (None for other methods), and further settings.

    All but the seed must agree between two seeds of one setting, where both have it.

    Args:
        args: OpenRLHF's nested namespace, with `credit` a `CreditSpec` or None.
        prompts, eval_prompts: digests of the rows (`data.training_rows`).
    """
    if args.data.prompt_probs is not None:  # the seed then decides which rows there are, and their order
        prompts = None
    spec: CreditSpec | None = args.credit
    estimator = args.algo.advantage.estimator if spec is None else spec.estimator
    knobs = (spec.knobs() if spec is not None else {}) or None
    rewards = args.reward.remote_url or ["model"]
    return {
        "method": "grpo" if estimator == "group_norm" else estimator,
        "model": args.actor.model_name_or_path,
        "task": Path((rewards if isinstance(rewards, str) else rewards[0]).partition("?")[0]).stem,
        "seed": args.train.seed,
        "group": args.rollout.n_samples_per_prompt,
        "credit": knobs if estimator == "shear" else None,
        "knobs": None if estimator == "shear" else knobs,
        "prm": spec.prm.model_name_or_path if spec is not None else None,
        "learning_rate": args.actor.adam.lr,
        "batch": [args.rollout.batch_size, args.train.batch_size],
        "max_new_tokens": args.rollout.max_new_tokens,
        "max_len": args.data.max_len,
        "prompts": [_names(args.data.prompt_dataset), args.data.prompt_probs, args.data.max_samples, prompts],
        "kl": [args.algo.kl.init_coef, args.algo.kl.use_loss],
        "sampling": [args.rollout.temperature, args.rollout.top_p],
        **({"eval_prompts": [_names(args.eval.dataset), eval_prompts]} if args.eval.dataset else {}),
        "eval": {name: getattr(args.eval, name) for name in ("suite", "k", "limit", "temperature")},
    }


def _names(datasets: str) -> list[str]:
    """Return hub ids, and the names of files and folders: copies of a file lie in different folders."""
    named = [each.strip() for each in datasets.split(",")]
    return [Path(name).name if name.endswith(KINDS) or looks_local(name) else name for name in named]


def write_run_facts(args: Namespace, prompts: str | None = None, eval_prompts: str | None = None) -> None:
    """Write run.json into the folder of the run's TensorBoard log; do nothing without a log. Arguments: `run_facts`."""
    if args.logger.tensorboard_dir:
        folder = Path(args.logger.tensorboard_dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / FILE, json.dumps(hidden(run_facts(args, prompts, eval_prompts)), indent=1) + "\n")
