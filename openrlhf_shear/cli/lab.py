"""The credit lab: compare credit rules on the built-in tasks in minutes.

The first error of every rollout is known on these tasks. So the lab shows where a rule puts the credit, and how much
that improves training.
"""

import argparse
import sys
from dataclasses import asdict, replace
from pathlib import Path

from openrlhf_shear.config import RULES
from openrlhf_shear.lab.settings import LabSettings, Trials
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
  {prog} --rules shear,oracle_first_wrong --seeds 10 --start runs/weak-policy --output runs/lab-weak
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
INTERRUPTED = "interrupted; finished runs are kept, and the same command resumes"


def _flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what")
    what.add_argument("--rules", metavar="RULE,...", required=True, help="rules to compare; see below")
    about = "rule that the others are compared with (default: uniform)"
    what.add_argument("--baseline", default="uniform", metavar="RULE", help=about)
    what.add_argument("--output", type=Path, metavar="DIR", required=True, help="folder to write, or to resume in")
    seeds = parser.add_argument_group("seeds, and the learning rate of each rule")
    task = parser.add_argument_group("task, trainer and rules")
    for group, config in ((seeds, Trials), (task, LabSettings)):
        frame.add_knobs(group, config)


@frame.command(_flags, __doc__, EPILOG, USAGE, (RuntimeError,), INTERRUPTED)
def main(args: argparse.Namespace) -> None:
    trials, settings = frame.knobs_of(args, Trials), frame.knobs_of(args, LabSettings)
    # Imported late, so that --help is instant.
    import torch

    from openrlhf_shear.lab.findings import find
    from openrlhf_shear.lab.placement import known_rollouts, placement, traces
    from openrlhf_shear.lab.policy import fingerprint, start_policy
    from openrlhf_shear.lab.runs import finished, jobs, run_all, tuned
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
    start = start_policy(settings)

    known = known_rollouts(settings, start)
    placements = {
        variant.name: placement(traces(settings, variant, known), Bootstrap())
        for variant in frame.progress(variants, "where the credit goes", unit="rule")
    }

    identity = fingerprint(start)
    best = tuned(trials, settings, variants, start, identity, args.output, train=trials.seeds > 0)
    wanted = jobs(settings, variants, trials.judging, start, identity, args.output, best)
    settings_shown = asdict(settings) | ({"learning_rate": best} if trials.rates else {})
    if trials.seeds:  # print placements first, since runs take longer; without notes on pictures that need the runs
        print_findings(replace(find([], placements, settings_shown, baseline.name), omitted=[]))
    runs = run_all(wanted, trials.workers) if trials.seeds else finished(wanted)
    names = [variant.name for variant in variants]
    runs = sorted(runs, key=lambda run: (names.index(run.rule), run.seed))
    findings = find(runs, placements, settings_shown, baseline.name)
    written = write_findings(findings, args.output)
    print_findings(findings)
    for path in written:
        print(path, file=sys.stderr)


if __name__ == "__main__":
    main()
