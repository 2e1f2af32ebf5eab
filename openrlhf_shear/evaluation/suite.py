"""The benchmarks of a training run's evaluations: `--eval.suite` as a plan."""

from argparse import Namespace
from pathlib import Path

from openrlhf_shear.data.files import KINDS
from openrlhf_shear.data.prompts import PromptFormat
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
