"""The benchmarks that a training run evaluates on: `--eval.suite` as a plan."""

from argparse import Namespace
from pathlib import Path

from openrlhf_shear.data.files import KINDS
from openrlhf_shear.data.prompts import PromptFormat
from openrlhf_shear.sampling.benchmarks import Benchmark, custom, load_questions, parse_names
from openrlhf_shear.sampling.plan import Plan
from openrlhf_shear.sampling.sampler import Sampling

SUITE_AVERAGE = "suite/average"  # by which the best checkpoint is chosen


def suite_benchmarks(suite: str, reward: str | None, prompt_key: str, label_key: str | None) -> list[Benchmark]:
    """What `--eval.suite` names: the paper's five, some benchmarks, or a file that the run's reward grades. ValueError
    where a name is not known, or the file's reward is no grader of single completions.
    """
    if suite.endswith(KINDS):
        return [custom(suite, reward or "", prompt_key, label_key or "", 1)]
    return parse_names(suite)


def suite_plan(args: Namespace) -> Plan:
    """What a training run, of OpenRLHF's nested namespace, asks at each evaluation.

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
        questions=[q for one in benchmarks for q in load_questions(one, folder, chosen.limit or None)],
        tasks={one.name: one.task for one in benchmarks},
        ks={one.name: chosen.k or one.k for one in benchmarks},
        sampling=Sampling(chosen.temperature, 1.0, args.rollout.max_new_tokens or data.max_len, args.train.seed),
        asked=PromptFormat(data.apply_chat_template, data.input_template),
    )
