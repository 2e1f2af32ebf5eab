"""Evaluate a model on benchmarks with vLLM: avg@k, pass@k and maj@k. It keeps every completion with its verdict."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openrlhf_shear.cli import sampling_flags as flags
from openrlhf_shear.evaluation.run import evaluate, print_table, regrade
from openrlhf_shear.line import frame
from openrlhf_shear.rewards.settings import GradingConfig
from openrlhf_shear.sampling.benchmarks import BENCHMARKS, SUITES
from openrlhf_shear.sampling.plan import Plan
from openrlhf_shear.sampling.sampler import EngineSettings, Sampler
from openrlhf_shear.sampling.store import Store

EPILOG = """\
benchmarks (k):
{benchmarks}

examples:
  {prog} --model Qwen/Qwen2.5-Math-7B --suite math --engines 8 --output runs/eval
  {prog} --model runs/x/checkpoint --benchmarks math500,gsm8k --data-dir data --limit 50 --output runs/y
  {prog} --model MODEL --benchmarks mine.jsonl --task math --prompt-key question --label-key answer --output runs/z
  {prog} --regrade runs/eval

OUTPUT holds results.json (scores by benchmark, with the standard error over problems), generations.jsonl (every
completion with its verdict, enough for --regrade), questions.jsonl and settings.json. The same command resumes an
interrupted evaluation, and does not repeat finished completions. On a Ray cluster set RAY_ADDRESS; engines spread over
its GPUs.

Each completion has a separate seed, made from --seed, the benchmark, the problem and the completion's number. For a
seed vLLM samples the same tokens on the same hardware and version, and results.json holds no time or date, so two such
runs write the same file. But a GPU may round differently in batches of other sizes, and nearly equal probabilities can
then give other tokens.
"""
LISTED = "\n".join(f"  {name:15}{benchmark.title} ({benchmark.k})" for name, benchmark in BENCHMARKS.items())
EPILOG = EPILOG.replace("{benchmarks}", LISTED)


def _flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what")
    what.add_argument("--model", metavar="PATH_OR_ID", help="model to evaluate: a Hugging Face folder or hub id")
    what.add_argument("--benchmarks", metavar="NAMES", help="benchmarks separated by commas, or your file")
    what.add_argument("--suite", choices=sorted(SUITES), help="the paper's five benchmarks of mathematics or of code")
    flags.add_what(what)
    what.add_argument(
        "--regrade", type=Path, metavar="DIR", help="only grade this folder's completions again; no model"
    )
    flags.add_own_file(parser)
    how = parser.add_argument_group("sampling")
    how.add_argument("--k", type=int, help="completions a problem (default: each benchmark's k, listed below)")
    flags.add_sampling(how)
    flags.add_engines(parser)
    flags.add_grading(parser)


@frame.command(_flags, __doc__, EPILOG, None, flags.REFUSED, flags.GOES_ON)
def main(args: argparse.Namespace) -> None:
    if args.regrade:
        print_table(regrade(Store(args.regrade), frame.knobs_of(args, GradingConfig)))
        return
    # Errors in the flags and the data show here, before an engine starts.
    engines = frame.knobs_of(args, EngineSettings)
    flags.need(args, "model", "output", again="regrade")
    if args.k is not None and args.k < 1:
        raise ValueError(f"--k must be at least 1: got {args.k}; leave it out for each benchmark's own")
    if bool(args.benchmarks) == bool(args.suite):
        raise ValueError("exactly one of --benchmarks and --suite is needed; use e.g. --suite math")
    plan = flags.plan(args, flags.benchmarks(args, args.suite or args.benchmarks, args.k or 1), args.k)
    scores = evaluate(
        plan, Store(args.output), lambda: _started(plan, engines, args), frame.knobs_of(args, GradingConfig)
    )
    print_table(scores)
    print(args.output / "results.json")
    failed = sum(sum(row["failed"].values()) for row in scores["benchmarks"].values())
    if failed:
        again = "the same command retries them"
        raise frame.Shortfall(f"{failed} completions have no verdict and count nowhere; {again}")


@contextmanager
def _started(plan: Plan, engines: EngineSettings, args: argparse.Namespace) -> Iterator[Sampler]:
    """Start engines, whose output goes to OUTPUT/logs/evaluate.log."""
    from openrlhf_shear.train.screen.console import quiet

    with quiet(args.output / "logs" / "evaluate.log", args.verbose):
        from openrlhf_shear.train.sampling.engine_sampler import started_engines
        from openrlhf_shear.train.start.launch import connect

        with started_engines(plan, engines, lambda: connect(engines.device, engines.gpus)) as sampler:
            yield sampler


if __name__ == "__main__":
    main()
