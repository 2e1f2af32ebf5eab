"""Measure whether a model's hidden states show where reasoning goes wrong, before you spend a training run.

This is the paper's diagnosis (sections 2 and 5.1): sample rollouts, complete prefixes of them, and compare the success
of these completions with the span distance.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from openrlhf_shear.cli import sampling_flags as flags
from openrlhf_shear.config import SearchConfig, ShearConfig
from openrlhf_shear.config.knobs import NOT_NEGATIVE, knob
from openrlhf_shear.line import frame
from openrlhf_shear.rewards.settings import GradingConfig
from openrlhf_shear.sampling.benchmarks import BENCHMARKS
from openrlhf_shear.sampling.sampler import EngineSettings, Sampling

EPILOG = """\
what it does:
  1 samples rollouts of every problem with vLLM and grades them
  2 cuts prefixes of each rollout in groups with both outcomes ("mixed" groups): the first ends after --window tokens,
    the next ones every --stride tokens, up to the final answer (the last \\boxed{}, "####" or "answer is"; without
    these the last number)
  3 completes each prefix --completions times; the correct fraction is the prefix's continuation success
  4 reads the policy's hidden states, and measures the distance of each prefix's last --window tokens to the nearest
    span of a rollout with the other outcome
  5 writes rollouts.parquet and prefixes.parquet, and analyses them (results.json, results.md, figures/)
  6 prints each number with its 95% bootstrap interval over problems and the paper's value, and last a verdict

examples:
  {prog} --model Qwen/Qwen2.5-Math-7B --dataset math500 --engines 8 --actor-ranks 8 --output runs/diagnosis
  {prog} --model MODEL --dataset mine.jsonl --task math --prompt-key question --label-key answer --output runs/mine
  {prog} --analyse runs/diagnosis

The same command resumes an interrupted diagnosis; finished samples and measurements are not repeated.
--dataset is a file, or one of {benchmarks}.
To read the rollouts: python -m openrlhf_shear.cli.rollout_page OUTPUT/rollouts.parquet --output page.html
"""
EPILOG = EPILOG.replace("{benchmarks}", ", ".join(BENCHMARKS))
USAGE = "{prog} --model MODEL --dataset NAME_OR_FILE --output DIR [flags; --help lists them]"
KNOBS = (ShearConfig, SearchConfig)


@dataclass(frozen=True)
class RolloutSampling(Sampling):
    """Settings of drawing rollouts, and the continuations of their prefixes, as in training."""

    temperature: float = knob(1.0, "Sampling temperature.", NOT_NEGATIVE)


def _flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what")
    what.add_argument("--model", metavar="PATH_OR_ID", help="model to diagnose: a Hugging Face folder or hub id")
    what.add_argument("--dataset", metavar="NAME_OR_FILE", help="a benchmark, or a file of problems with labels")
    flags.add_what(what)
    what.add_argument("--analyse", type=Path, metavar="DIR", help="repeat only the analyses of this folder; no model")
    flags.add_own_file(parser)
    how = parser.add_argument_group("sampling")
    how.add_argument("--samples-per-prompt", type=int, default=8, metavar="G", help="rollouts a problem (default: 8)")
    how.add_argument("--completions", type=int, default=16, metavar="N", help="completions a prefix (default: 16)")
    flags.add_sampling(how, RolloutSampling)
    distance = parser.add_argument_group("distance", "as in training (--shear.*); window and stride also cut prefixes")
    for kind in KNOBS:
        frame.add_knobs(distance, kind)
    about = "also measure distances to rollouts of the same outcome, and with outcomes in a random order"
    distance.add_argument("--controls", action="store_true", help=f"{about}; takes about as long as two more searches")
    about = "mixed groups for heatmaps, whose pairs of rollouts are all measured (default: 16)"
    distance.add_argument("--heatmaps", type=int, default=16, metavar="N", help=about)
    analyses = parser.add_argument_group("analyses")
    analyses.add_argument(
        "--resamples", type=int, default=1000, metavar="N", help="bootstrap resamples (default: 1000)"
    )
    about = "compare hidden states with N-grams of the text, by the same formula; also with --analyse"
    analyses.add_argument("--ngram", type=int, default=3, metavar="N", help=f"{about}; 0 leaves it out (default: 3)")
    flags.add_engines(parser)
    policy = parser.add_argument_group("policy", "reads the hidden states on the engines' GPUs, after the engines end")
    policy.add_argument("--actor-ranks", type=int, default=1, metavar="N", help="GPUs of the policy (default: 1)")
    about = "ZeRO stage; 3 shards the weights over the GPUs (default: 2)"
    policy.add_argument("--zero-stage", type=int, choices=(2, 3), default=2, help=about)
    policy.add_argument("--micro-batch-size", type=int, default=4, metavar="N", help="rollouts a pass (default: 4)")
    flags.add_grading(parser)


@frame.command(_flags, __doc__, EPILOG, USAGE, flags.REFUSED, flags.GOES_ON)
def main(args: argparse.Namespace) -> None:
    frame.at_least(args, ngram=0)
    if not args.analyse:
        _sample_and_measure(args)
    _analyse(args.analyse or args.output, args)


def _sample_and_measure(args: argparse.Namespace) -> None:
    """Sample and measure; errors in the flags, the data or the model show before an engine starts."""
    flags.need(args, "model", "dataset", "output", again="analyse")
    frame.at_least(args, samples_per_prompt=2, resamples=1, completions=1, actor_ranks=1, micro_batch_size=1)
    engines = frame.knobs_of(args, EngineSettings)
    config, search = (frame.knobs_of(args, kind) for kind in KNOBS)
    search.require_fits(config.window)
    chosen = flags.benchmarks(args, args.dataset, args.samples_per_prompt)
    if len(chosen) > 1:
        raise ValueError(f"--dataset must be one benchmark or file: got {args.dataset}; use e.g. math500")
    from openrlhf_shear.kernels.backends import check_device  # late, as below

    check_device(search.backend, "cpu")  # the search runs on CPU cores of the Ray cluster
    problems = flags.plan(args, chosen, args.samples_per_prompt, token_ids=True)
    # Imported late, so that --help and errors in the flags are quick.
    from transformers import AutoTokenizer

    from openrlhf_shear.diagnosis.run import COMPLETED, SAMPLED, Diagnosis, diagnose
    from openrlhf_shear.evaluation.run import score
    from openrlhf_shear.sampling.store import Store
    from openrlhf_shear.train.screen.console import quiet
    from openrlhf_shear.train.start.diagnosis import Cluster

    cluster = Cluster(engines, args.actor_ranks, args.zero_stage, args.micro_batch_size)
    request = Diagnosis(problems, args.completions, config, args.heatmaps, search, args.controls)
    tokenizer = AutoTokenizer.from_pretrained(args.model, trust_remote_code=args.trust_remote_code)
    with quiet(args.output / "logs" / "diagnose.log", args.verbose):
        written = list(diagnose(request, args.output, cluster, tokenizer, frame.knobs_of(args, GradingConfig)))
    for path in written:
        print(path)
    for store in (Store(args.output / SAMPLED), Store(args.output / COMPLETED)):
        score(store, store.generations())  # writes results.json, as in an evaluation


def _analyse(folder: Path, args: argparse.Namespace) -> None:
    from openrlhf_shear.diagnosis.findings import find
    from openrlhf_shear.diagnosis.prefixes import read_prefixes
    from openrlhf_shear.diagnosis.run import PREFIXES, ROLLOUTS, TEXT
    from openrlhf_shear.diagnosis.text import text_control
    from openrlhf_shear.report.findings import print_findings, write_findings
    from openrlhf_shear.rollouts.record import read_rollouts

    prefixes, settings = read_prefixes(folder / PREFIXES)
    rollouts, _ = read_rollouts(folder / ROLLOUTS)
    search = frame.knobs_of(args, SearchConfig)
    text = text_control(folder / TEXT, rollouts, settings, args.ngram, search) if args.ngram else None
    findings = find(prefixes, rollouts, settings, args.resamples, args.seed, text)
    for path in write_findings(findings, folder):
        print(path, file=sys.stderr)
    print_findings(findings)


if __name__ == "__main__":
    main()
