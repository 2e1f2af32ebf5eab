"""Evaluate a model on benchmarks with vLLM: avg@k, pass@k, maj@k, every completion kept with its verdict."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from openrlhf_shear.cli.sampling_flags import (
    add_engines,
    add_grading,
    add_own_file,
    add_sampling,
    engines,
    grading,
    sampling,
)
from openrlhf_shear.data.files import KINDS, DataError
from openrlhf_shear.evaluation.results import print_table
from openrlhf_shear.evaluation.run import evaluate, regrade
from openrlhf_shear.preflight.inputs import model_config
from openrlhf_shear.rewards.jail import JailError
from openrlhf_shear.sampling.benchmarks import BENCHMARKS, SUITES, Benchmark, custom, load_questions, parse_names
from openrlhf_shear.sampling.plan import Plan
from openrlhf_shear.sampling.sampler import Engines
from openrlhf_shear.sampling.store import Store

PROG = "python -m openrlhf_shear.cli.evaluate"
EPILOG = """\
benchmarks (k):
{benchmarks}

examples:
  {prog} --model Qwen/Qwen2.5-Math-7B --suite math --engines 8 --output runs/eval
  {prog} --model runs/x/checkpoint --benchmarks math500,gsm8k --data-dir data --limit 50 --output runs/y
  {prog} --model MODEL --benchmarks mine.jsonl --task math --prompt-key question --label-key answer --output runs/z
  {prog} --regrade runs/eval

OUTPUT holds results.json (scores by benchmark, with the standard error over problems), generations.jsonl (every
completion with its verdict, enough for --regrade), questions.jsonl and settings.json. The same command again goes on
where it was interrupted, and does not sample again what is there. On a Ray cluster set RAY_ADDRESS; engines spread over
its GPUs.

Each completion has a seed of its own, made from --seed, the benchmark, the problem and its number. vLLM gives the same
tokens for it on the same hardware and version, and results.json holds no time or date: two such runs write the same
file. Where a GPU rounds differently in batches of other sizes, nearly equal probabilities can still part.
"""


def main(argv: list[str] | None = None) -> None:
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        if args.regrade:
            print_table(regrade(Store(args.regrade), grading(args)))
            return
        start, plan = engines(args), _plan(args)
        found = evaluate(plan, Store(args.output), lambda: _started(plan, start), grading(args))
    except (ValueError, DataError, JailError, RuntimeError) as error:
        parser.error(str(error))
    print_table(found)
    print(args.output / "results.json")
    failed = sum(sum(row["failed"].values()) for row in found["benchmarks"].values())
    if failed:
        sys.exit(f"{PROG}: {failed} completions have no verdict and count nowhere; the same command tries them again")


def _plan(args: argparse.Namespace) -> Plan:
    """Everything that can be wrong about the line and the data shows here, before an engine starts."""
    for flag, value in (("--model", args.model), ("--output", args.output)):
        if not value:
            raise ValueError(f"{flag} is needed; use {flag} VALUE")
    if args.k is not None and args.k < 1:
        raise ValueError(f"--k must be at least 1: got {args.k}; leave it out for each benchmark's own")
    model_config("--model", args.model)
    chosen = _benchmarks(args)
    questions = [question for one in chosen for question in load_questions(one, args.data_dir, args.limit)]
    return Plan(
        model=args.model,
        questions=questions,
        tasks={one.name: one.task for one in chosen},
        ks={one.name: args.k or one.k for one in chosen},
        sampling=sampling(args),
        chat=args.prompt_format == "chat",
        max_model_len=args.max_model_len,
    )


def _benchmarks(args: argparse.Namespace) -> list[Benchmark]:
    if bool(args.benchmarks) == bool(args.suite):
        raise ValueError("exactly one of --benchmarks and --suite is needed; use e.g. --suite math")
    if (args.benchmarks or "").endswith(KINDS):
        return [custom(Path(args.benchmarks), args.task, args.prompt_key, args.label_key, args.k or 1)]
    return parse_names(args.suite or args.benchmarks)


def _started(plan: Plan, engines: Engines):
    from openrlhf_shear.fork.evaluation import started_engines

    return started_engines(plan, engines)


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:15}{one.title} ({one.k})" for name, one in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog=PROG,
        description=__doc__,
        epilog=EPILOG.format(prog=PROG, benchmarks=listed),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_argument_group("what")
    what.add_argument("--model", metavar="PATH_OR_ID", help="a Hugging Face folder or hub id")
    what.add_argument("--benchmarks", metavar="NAMES", help="names separated by commas, or one file of your own")
    what.add_argument("--suite", choices=sorted(SUITES), help="the paper's five of mathematics, or of code")
    what.add_argument("--data-dir", type=Path, metavar="DIR", help="folder with their files (default: the hub)")
    what.add_argument("--limit", type=int, metavar="N", help="the first N problems of each benchmark (default: all)")
    what.add_argument("--output", type=Path, metavar="DIR", help="folder to write, or to go on in")
    what.add_argument("--regrade", type=Path, metavar="DIR", help="grade this folder's completions again; no model")
    add_own_file(parser)
    how = parser.add_argument_group("sampling")
    how.add_argument("--k", type=int, help="completions a problem (default: each benchmark's own)")
    add_sampling(how, temperature=0.1)
    add_engines(parser)
    add_grading(parser)
    return parser


if __name__ == "__main__":
    main()
