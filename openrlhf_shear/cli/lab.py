"""The credit lab: try any credit rule in minutes, against the truth. On the built-in tasks the first error of every
rollout is known, so it shows where a rule puts the credit, and what that is worth in training."""

import argparse
import os
import sys
import traceback
from dataclasses import asdict, fields, replace
from pathlib import Path

from openrlhf_shear.cli import frame
from openrlhf_shear.lab.settings import LabSettings

EPILOG = """\
what it does, without Ray or vLLM:
  1 samples rollouts of held-out problems with the start policy and shows where each rule puts the credit on them: does
    it rise at the first error, beyond what weights do anyway as a rollout goes on?
  2 trains the policy with each rule from --seeds seeds, paired: the same problems, random numbers and held-out set for
    all rules; about two minutes a run and core (60 steps of 16 x 8 rollouts)
  3 prints both tables, and writes results.json, results.md and figures/

rules:
  uniform (GRPO itself), shear, error_odds, entropy_adv
  oracle_from_error, oracle_first_wrong    incorrect rollouts: credit from the first error on; on that token only
  oracle_first_wrong/hits=0.4    on the error so often, else on another token as surprising
  my_module:MyRule                         yours: a CreditRule or UpdateRule, docs/credit-rules.md
  RULE/KNOB=VALUE/...                      shear/window=4/stride=1; of a rule of yours, its class' arguments
  RULE/matched                             control: uniform credit of the same total, apart for correct and incorrect
                                           rollouts; a rule must beat it to have blamed better, not merely less
  RULE/shuffled                            control: the same credit in a random order within each rollout
  RULE/permuted                            control: the rule is told the group's outcomes in a random order
  RULE/on_incorrect                        its credit on incorrect rollouts, uniform credit on correct ones
  RULE/on_incorrect/matched                a control of that

examples:
  {prog} --rules my_module:MyRule,shear --seeds 0 --output runs/lab
  {prog} --rules uniform,shear,shear/matched,my_module:MyRule --seeds 10 --output runs/lab
  {prog} --rules shear,oracle_first_wrong --seeds 10 --start 0.2 --output runs/lab-weak
  {prog} --task ledger --rules uniform,shear --prompts 8 --steps 20 --window 32 --stride 8 --epsilon-rel 0.015 \
      --output runs/ledger/lab

--seeds 0 is step 1, in seconds, and a report on the runs that are there already. Runs are kept: the same command again
goes on where it was interrupted, and more rules or seeds cost only the new runs. A rule of yours is trained anew when
its file changes; of other files that it uses the lab knows nothing.
"""
USAGE = "{prog} --rules RULE,... --output DIR [flags; --help lists them]"
KEPT = "interrupted; finished runs are kept, and the same command goes on"


def _flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what")
    what.add_argument("--rules", metavar="RULE,...", required=True, help="what to try; see below")
    about = "training runs a rule; 0 trains nothing (default: 10)"
    what.add_argument("--seeds", type=int, default=10, metavar="N", help=about)
    what.add_argument("--first-seed", type=int, default=0, metavar="N", help="others are fresh ones (default: 0)")
    about = "what the others are compared with (default: uniform)"
    what.add_argument("--baseline", default="uniform", metavar="RULE", help=about)
    what.add_argument("--output", type=Path, metavar="DIR", required=True, help="folder to write, or to go on in")
    cores = len(os.sched_getaffinity(0))
    what.add_argument("--workers", type=int, default=cores, metavar="N", help="runs at a time (default: all cores)")
    task = parser.add_argument_group("task, trainer and rules")
    for each in fields(LabSettings):
        frame.add_knob(task, LabSettings, each, "--" + each.name.replace("_", "-"))


@frame.command(_flags, __doc__, EPILOG, USAGE, (RuntimeError,), KEPT)
def main(args: argparse.Namespace) -> None:
    try:
        _try_rules(args)
    except RuntimeError as error:  # a rule's own, whose author wants to see where
        traceback.print_exception(error.__cause__ or error)
        raise


def _try_rules(args: argparse.Namespace) -> None:
    frame.at_least(args, seeds=0, first_seed=0, workers=1)
    settings = LabSettings(**{each.name: getattr(args, each.name) for each in fields(LabSettings)})
    # Late, so that --help is instant.
    import torch
    from tqdm import tqdm

    from openrlhf_shear.lab.findings import find
    from openrlhf_shear.lab.placement import known_rollouts, placement, traces
    from openrlhf_shear.lab.policy import fingerprint, start_policy
    from openrlhf_shear.lab.runs import finished, jobs, run_all
    from openrlhf_shear.lab.variants import parse_rules
    from openrlhf_shear.report.bootstrap import Bootstrap
    from openrlhf_shear.report.findings import print_findings, write_findings

    variants = parse_rules(args.rules)
    baseline, *more = parse_rules(args.baseline)
    if more:
        raise ValueError(f"--baseline must be one rule: got {args.baseline}")
    if baseline not in variants:
        variants = [baseline, *variants]
    for variant in variants:  # a mistake in one shows before anything is sampled
        variant.rule(settings)
    torch.set_num_threads(1)
    start = start_policy(settings, args.output, tqdm.write)

    known = known_rollouts(settings, start)
    placements = {
        variant.name: placement(traces(settings, variant, *known), Bootstrap())
        for variant in frame.progress(variants, "where the credit goes", unit="rule")
    }

    seeds = range(args.first_seed, args.first_seed + max(args.seeds, 1))
    wanted = jobs(settings, variants, seeds, start, fingerprint(start), args.output)
    if args.seeds:  # the runs take longer, and their pictures are not missing yet
        print_findings(replace(find([], placements, asdict(settings), baseline.name), omitted=[]))
    runs = run_all(wanted, args.workers) if args.seeds else finished(wanted)
    names = [variant.name for variant in variants]
    runs = sorted(runs, key=lambda run: (names.index(run.rule), run.seed))
    findings = find(runs, placements, asdict(settings), baseline.name)
    written = write_findings(findings, args.output)
    print_findings(findings)
    for path in written:
        print(path, file=sys.stderr)


if __name__ == "__main__":
    main()
