"""The credit lab: compare credit rules on the built-in tasks in minutes.

The first error of every rollout is known on these tasks. So the lab shows where a rule puts the credit, and how much
that improves training.
"""

import argparse
import os
import sys
import traceback
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace

from openrlhf_shear.cli.tuning import add_tuning, check_tuning, tuned
from openrlhf_shear.config import RULES
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.line import frame

EPILOG = """\
what it does, without Ray or vLLM:
  1 samples rollouts of held-out problems with the start policy, and shows where each rule puts the credit: does credit
    rise at the first error, beyond the usual rise of weights along a rollout?
  2 trains the policy with each rule from --seeds seeds; all rules get the same problems, random numbers and held-out
    set. A run takes about two minutes on a core (60 steps of 16 x 8 rollouts)
  3 prints both tables, and writes results.json, results.md and figures/

rules:
RULES
  oracle_from_error, oracle_first_wrong    incorrect rollouts: credit from the first error on; on that token only
  oracle_first_wrong/hits=0.4              credit on the error in this share of rollouts, else on an equally surprising
                                           token
  my_module:MyRule                         your CreditRule or UpdateRule, docs/credit-rules.md
  RULE/KNOB=VALUE/...                      shear/window=4/stride=1; for your rule, arguments of its class
  RULE/matched                             control: uniform credit with the same total, separately for correct and
                                           incorrect rollouts; only a rule that beats it blames better, not just less
  RULE/shuffled                            control: the same credit in a random order within each rollout
  RULE/permuted                            control: the rule gets the group's outcomes in a random order
  RULE/on_incorrect                        its credit on incorrect rollouts, uniform credit on correct rollouts
  RULE/on_incorrect/matched                the matched control of on_incorrect

examples:
  {prog} --rules my_module:MyRule,shear --seeds 0 --output runs/lab
  {prog} --rules uniform,shear,shear/matched,my_module:MyRule --seeds 10 --output runs/lab
  {prog} --rules shear,oracle_first_wrong --seeds 10 --start 0.2 --output runs/lab-weak
  {prog} --rules uniform,shear --learning-rates 5e-5,1e-4,2e-4 --eval-every 5 --eval-temperature 0.1 --output runs/tuned
  {prog} --task bookkeeping --rules uniform,shear --prompts 8 --steps 20 --window 32 --stride 8 --epsilon-rel 0.015 \
      --output runs/ledger/lab

--seeds 0 does only step 1, in seconds, and reports on finished runs. The lab keeps finished runs: the same command
resumes, and more rules or seeds cost only the new runs. The lab trains your rule again when the rule's file changes; it
does not notice changes in other files that the rule uses.
""".replace(
    "RULES",
    "\n".join(f"  {name:<12}  {rule.about}" for name, rule in RULES.items() if "prm_scores" not in rule.traits.needs),
)
USAGE = "{prog} --rules RULE,... --output DIR [flags; --help lists them]"
KEPT = "interrupted; finished runs are kept, and the same command resumes"


def _flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what")
    what.add_argument("--rules", metavar="RULE,...", required=True, help="rules to compare; see below")
    about = "training runs a rule; 0 trains nothing (default: 10)"
    what.add_argument("--seeds", type=int, default=10, metavar="N", help=about)
    about = "first of the consecutive seeds (default: 0)"
    what.add_argument("--first-seed", type=int, default=0, metavar="N", help=about)
    about = "rule that the others are compared with (default: uniform)"
    what.add_argument("--baseline", default="uniform", metavar="RULE", help=about)
    what.add_argument("--output", type=Path, metavar="DIR", required=True, help="folder to write, or to resume in")
    cores = len(os.sched_getaffinity(0))
    what.add_argument("--workers", type=int, default=cores, metavar="N", help="parallel runs (default: all cores)")
    add_tuning(parser)
    task = parser.add_argument_group("task, trainer and rules")
    for each in fields(LabSettings):
        frame.add_knob(task, LabSettings, each, "--" + each.name.replace("_", "-"))


@frame.command(_flags, __doc__, EPILOG, USAGE, (RuntimeError,), KEPT)
def main(args: argparse.Namespace) -> None:
    try:
        _try_rules(args)
    except RuntimeError as error:  # raised by a rule: its author needs the traceback
        traceback.print_exception(error.__cause__ or error)
        raise


def _try_rules(args: argparse.Namespace) -> None:
    frame.at_least(args, seeds=0, first_seed=0, workers=1)
    settings = LabSettings(**{each.name: getattr(args, each.name) for each in fields(LabSettings)})
    seeds = range(args.first_seed, args.first_seed + max(args.seeds, 1))
    rates = check_tuning(args, seeds)
    # Imported late, so that --help is instant.
    import torch
    from tqdm import tqdm

    from openrlhf_shear.lab.findings import find
    from openrlhf_shear.lab.placement import known_rollouts, placement, traces
    from openrlhf_shear.lab.policy import fingerprint, start_policy
    from openrlhf_shear.lab.runs import finished, run_all
    from openrlhf_shear.lab.tuning import tuned_jobs
    from openrlhf_shear.lab.variants import parse_rules
    from openrlhf_shear.report.bootstrap import Bootstrap
    from openrlhf_shear.report.findings import print_findings, write_findings

    variants = parse_rules(args.rules)
    baseline, *more = parse_rules(args.baseline)
    if more:
        raise ValueError(f"--baseline must be one rule: got {args.baseline}")
    if baseline not in variants:
        variants = [baseline, *variants]
    for variant in variants:  # errors in a rule show before anything is sampled
        variant.rule(settings)
    torch.set_num_threads(1)
    start = start_policy(settings, args.output, tqdm.write)

    known = known_rollouts(settings, start)
    placements = {
        variant.name: placement(traces(settings, variant, known), Bootstrap())
        for variant in frame.progress(variants, "where the credit goes", unit="rule")
    }

    asked = SimpleNamespace(settings=settings, variants=variants, start=start, identity=fingerprint(start))
    best = tuned(args, rates, asked, args.output)
    wanted = tuned_jobs(settings, variants, best, seeds, start, asked.identity, args.output)
    told = asdict(settings) | ({"learning_rate": best} if rates else {})
    if args.seeds:  # print placements first, since runs take longer; without notes on pictures that need the runs
        print_findings(replace(find([], placements, told, baseline.name), omitted=[]))
    runs = run_all(wanted, args.workers) if args.seeds else finished(wanted)
    names = [variant.name for variant in variants]
    runs = sorted(runs, key=lambda run: (names.index(run.rule), run.seed))
    findings = find(runs, placements, told, baseline.name)
    written = write_findings(findings, args.output)
    print_findings(findings)
    for path in written:
        print(path, file=sys.stderr)


if __name__ == "__main__":
    main()
