"""Show where credit rules put the blame in responses whose first wrong step a human marked. Nothing is trained."""

import argparse
import sys
import traceback
from pathlib import Path

from openrlhf_shear.line import frame

EPILOG = """\
what it does, without Ray or vLLM:
  1 reads responses, and groups them by problem
  2 runs the model once over each response; readings are kept, and the same command resumes
  3 gate: changes a number in right responses, and shows which rules find it. If no rule reaches lift 1.5, the model is
    too weak to ask
  4 applies every rule to the groups with both outcomes, prints where the weight of wrong responses goes, and writes
    results.json and results.md

responses, each file .jsonl, .json (gzipped or not) or .parquet, with rows in one of these forms:
  problem, steps, correct, label           steps is a list of texts; label is the index of the first wrong step, -1
                                           for none, null for unknown
  ProcessBench's                           the same with final_answer_correct in place of correct
  grade-school-math's example solutions    a right ground truth and solutions without labels: opponents

rules: as in the lab (python -m openrlhf_shear.cli.lab --help), with its controls; knobs that a name leaves out have
their defaults of training. Rules that act in the update, and rules that need a process reward model or the errors, are
refused.

example:
  {prog} --model runs/smollm2/policy --responses processbench/gsm8k.jsonl.gz example_model_solutions.jsonl.gz \\
      --rules shear/window=32/stride=8,text/window=32/stride=8,error_odds/rise=0,my_module:MyRule --output runs/offline
"""
USAGE = "{prog} --model MODEL --responses FILE ... --rules RULE,... --output DIR [flags; --help lists them]"
KEPT = "interrupted; readings are kept, and the same command resumes"


def _flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what")
    what.add_argument("--model", metavar="PATH_OR_ID", required=True, help="a Hugging Face folder or hub id")
    what.add_argument("--responses", metavar="FILE", nargs="+", required=True, help="files of responses; see below")
    what.add_argument("--rules", metavar="RULE,...", required=True, help="rules to compare; see below")
    about = "rule that the lifts of the others are compared with (default: the first of --rules)"
    what.add_argument("--baseline", metavar="RULE", help=about)
    what.add_argument("--output", type=Path, metavar="DIR", required=True, help="folder to write, or to resume in")
    about = "compare on the first N problems (default: all)"
    what.add_argument("--limit", type=int, metavar="N", help=about)
    about = "problems of the gate, at most (default: 64)"
    what.add_argument("--gate-problems", type=int, default=64, metavar="N", help=about)
    how = parser.add_argument_group("model")
    how.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="(default: float32)")
    about = "auto: cuda if there is a GPU, else cpu (default: auto)"
    how.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help=about)
    how.add_argument("--batch-size", type=int, default=4, metavar="N", help="responses a pass (default: 4)")
    about = "chat: the model's chat template; plain: the problem's text (default: chat)"
    how.add_argument("--prompt-format", choices=("chat", "plain"), default="chat", help=about)
    how.add_argument("--trust-remote-code", action="store_true", help="run Python code that comes with the model")
    numbers = parser.add_argument_group("numbers")
    about = "seed of the changed numbers and of controls (default: 0)"
    numbers.add_argument("--seed", type=int, default=0, help=about)
    numbers.add_argument("--resamples", type=int, default=1000, metavar="N", help="bootstrap resamples (default: 1000)")


@frame.command(_flags, __doc__, EPILOG, USAGE, (RuntimeError,), KEPT)
def main(args: argparse.Namespace) -> None:
    try:
        _place(args)
    except RuntimeError as error:  # raised by a rule: its author needs the traceback
        traceback.print_exception(error.__cause__ or error)
        raise


def _place(args: argparse.Namespace) -> None:
    frame.at_least(args, batch_size=1, resamples=1, seed=0, gate_problems=1)
    if args.limit is not None:
        frame.at_least(args, limit=1)
    # Imported late, so that --help is instant.
    import torch

    from openrlhf_shear.data.prompts import PromptFormat
    from openrlhf_shear.lab.offline.corruption import planted
    from openrlhf_shear.lab.offline.findings import find, gate_table, gate_verdict
    from openrlhf_shear.lab.offline.reading import Reader
    from openrlhf_shear.lab.offline.responses import by_problem, comparable, read_responses
    from openrlhf_shear.lab.offline.run import compare, gate, rules_of
    from openrlhf_shear.lab.variants import parse_rules
    from openrlhf_shear.preflight.inputs import check_model
    from openrlhf_shear.report.bootstrap import Bootstrap
    from openrlhf_shear.report.findings import print_findings, write_findings
    from openrlhf_shear.report.tables import print_tables

    rules = rules_of(parse_rules(args.rules))
    names = [variant.name for variant in rules]
    baseline = args.baseline or names[0]
    if baseline not in names:
        raise ValueError(f"--baseline must be one of --rules: got {baseline}; use e.g. {names[0]}")
    every = by_problem(read_responses(args.responses))
    groups = comparable(every, args.limit)
    check_model("--model", args.model, args.trust_remote_code)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if args.device == "auto" else args.device
    asked = PromptFormat(args.prompt_format == "chat")
    reader = Reader.load(
        args.model, asked, args.dtype, device, args.trust_remote_code, args.output / "readings", args.batch_size
    )

    bootstrap = Bootstrap(args.resamples, args.seed)
    pairs = frame.progress(planted(every, args.seed, args.gate_problems), "gate", unit="response")
    found = gate(rules, pairs, reader, args.seed, bootstrap)
    print(gate_verdict(found), end="\n\n")
    print_tables([gate_table(found)], lines=True)
    compared = compare(rules, frame.progress(groups, "comparison", unit="problem"), reader, args.seed, bootstrap)

    flags = (
        "model",
        "responses",
        "limit",
        "gate_problems",
        "dtype",
        "batch_size",
        "prompt_format",
        "seed",
        "resamples",
    )
    findings = find({name: getattr(args, name) for name in flags}, found, groups, compared, baseline)
    for path in write_findings(findings, args.output):
        print(path, file=sys.stderr)
    print_findings(findings)


if __name__ == "__main__":
    main()
