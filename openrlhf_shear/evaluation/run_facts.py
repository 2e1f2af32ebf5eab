"""run.json: the identity of a run, written beside its TensorBoard log at the start; reports group runs by it."""

import json
from argparse import Namespace
from pathlib import Path

from openrlhf_shear.config import CreditSpec
from openrlhf_shear.config.secrets import hidden
from openrlhf_shear.data.writing import write_text

FILE = "run.json"


def run_facts(args: Namespace) -> dict:
    """Return method, model, task, seed, group size, SHEAR's knobs (None for other methods), and further settings.

    `args` is OpenRLHF's nested namespace, with `credit` a `CreditSpec` or None. All but the seed must agree between two
    seeds of one setting.
    """
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
        "data": [_without_folder(args.data.prompt_dataset), args.data.prompt_probs, args.data.max_samples],
        "kl": [args.algo.kl.init_coef, args.algo.kl.use_loss],
        "sampling": [args.rollout.temperature, args.rollout.top_p],
        "eval_data": _without_folder(args.eval.dataset),
        "eval": {name: getattr(args.eval, name) for name in ("suite", "k", "limit", "temperature")},
    }


def _without_folder(dataset: str | None) -> str | None:
    """Return the last two parts of a path or hub id: copies of a file lie in different folders."""
    return dataset and ",".join("/".join(Path(each.strip()).parts[-2:]) for each in dataset.split(","))


def write_run_facts(args: Namespace) -> None:
    """Write run.json into the folder of the run's TensorBoard log; do nothing without a log."""
    if args.logger.tensorboard_dir:
        folder = Path(args.logger.tensorboard_dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / FILE, json.dumps(hidden(run_facts(args)), indent=1) + "\n")
