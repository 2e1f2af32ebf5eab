"""Show where credit rules put the blame in responses whose first wrong step a human marked. Nothing is trained."""

import argparse
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from openrlhf_shear.config.knobs import COUNT, NOT_NEGATIVE, Knobs, knob
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
INTERRUPTED = "interrupted; readings are kept, and the same command resumes"


@dataclass(frozen=True)
class OfflineSettings(Knobs, section="offline"):
    """How responses are read and compared."""

    limit: int | None = knob(None, "Compare on the first so many problems.", COUNT)
    gate_problems: int = knob(64, "Problems of the gate, at most.", COUNT)
    dtype: str = knob("float32", "Precision of the model.", ("float32", "bfloat16"))
    device: str = knob("auto", "Auto: cuda if there is a GPU, else cpu.", ("auto", "cuda", "cpu"))
    batch_size: int = knob(4, "Responses a pass.", COUNT)
    prompt_format: str = knob("chat", "Chat: the model's chat template; plain: the problem's text.", ("chat", "plain"))
    trust_remote_code: bool = knob(False, "Run Python code that comes with the model.")
    seed: int = knob(0, "Seed of the changed numbers and of controls.", NOT_NEGATIVE)
    resamples: int = knob(1000, "Bootstrap resamples.", COUNT)

    def of_the_numbers(self) -> dict[str, object]:
        """Return the settings that the numbers depend on, but for rounding."""
        return {name: value for name, value in asdict(self).items() if name not in ("device", "trust_remote_code")}


def _flags(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what")
    what.add_argument("--model", metavar="PATH_OR_ID", required=True, help="a Hugging Face folder or hub id")
    what.add_argument("--responses", metavar="FILE", nargs="+", required=True, help="files of responses; see below")
    what.add_argument("--rules", metavar="RULE,...", required=True, help="rules to compare; see below")
    about = "rule that the lifts of the others are compared with (default: the first of --rules)"
    what.add_argument("--baseline", metavar="RULE", help=about)
    what.add_argument("--output", type=Path, metavar="DIR", required=True, help="folder to write, or to resume in")
    frame.add_knobs(parser.add_argument_group("how"), OfflineSettings)


@frame.command(_flags, __doc__, EPILOG, USAGE, (RuntimeError,), INTERRUPTED)
def main(args: argparse.Namespace) -> None:
    how = frame.knobs_of(args, OfflineSettings)
    # Imported late, so that --help is instant.
    import torch

    from openrlhf_shear.data.prompts import PromptFormat
    from openrlhf_shear.lab.credit import PERMUTED
    from openrlhf_shear.lab.offline.findings import find, gate_table, gate_verdict
    from openrlhf_shear.lab.offline.reading import Reader
    from openrlhf_shear.lab.offline.responses import by_problem, comparable, planted, read_responses
    from openrlhf_shear.lab.offline.run import compare, gate, rule_of
    from openrlhf_shear.lab.variants import parse_rules
    from openrlhf_shear.preflight.models import check_model
    from openrlhf_shear.report.bootstrap import Bootstrap
    from openrlhf_shear.report.findings import print_findings, write_findings
    from openrlhf_shear.report.tables import print_tables

    rules = {variant: rule_of(variant) for variant in parse_rules(args.rules)}
    names = [variant.name for variant in rules]
    baseline = args.baseline or names[0]
    if baseline not in names:
        raise ValueError(f"--baseline must be one of --rules: got {baseline}; use e.g. {names[0]}")
    every = by_problem(read_responses(args.responses))
    permuted = any(PERMUTED in (variant.control or "").split("/") for variant in rules)
    groups = comparable(every, how.limit, 3 if permuted else 2)
    check_model("--model", args.model, how.trust_remote_code)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if how.device == "auto" else how.device
    prompts, readings = PromptFormat(how.prompt_format == "chat"), args.output / "readings"
    reader = Reader.load(args.model, prompts, how.dtype, device, how.trust_remote_code, readings, how.batch_size)

    bootstrap = Bootstrap(how.resamples, how.seed)
    pairs = frame.progress(planted(every, how.seed, how.gate_problems), "gate", unit="response")
    found = gate(rules, pairs, reader, how.seed, bootstrap)
    print(gate_verdict(found), end="\n\n")
    print_tables([gate_table(found)], lines=True)
    compared = compare(rules, frame.progress(groups, "comparison", unit="problem"), reader, how.seed, bootstrap)

    settings = {"model": args.model, "responses": args.responses} | how.of_the_numbers()
    findings = find(settings, found, groups, compared, baseline)
    for path in write_findings(findings, args.output):
        print(path, file=sys.stderr)
    print_findings(findings)


if __name__ == "__main__":
    main()
