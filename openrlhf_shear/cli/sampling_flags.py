"""Flags that `evaluate` and `diagnose` share for sampling and grading, and the objects made from these flags."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from openrlhf_shear.config.refusal import LineError
from openrlhf_shear.data.files import KINDS
from openrlhf_shear.data.prompts import PromptFormat
from openrlhf_shear.line import frame
from openrlhf_shear.preflight.models import check_model
from openrlhf_shear.preflight.rewards import ask_file, label_warning
from openrlhf_shear.rewards.files import FILES
from openrlhf_shear.rewards.graders import GRADERS, NAMES
from openrlhf_shear.rewards.jail import find_jail
from openrlhf_shear.rewards.settings import GradingConfig
from openrlhf_shear.sampling.benchmarks import Benchmark, custom, load_questions, parse_names
from openrlhf_shear.sampling.plan import Plan
from openrlhf_shear.sampling.records import Question
from openrlhf_shear.sampling.sampler import EngineSettings, Sampling

REFUSED = (RuntimeError,)  # the cluster has too few GPUs, or engines died
GOES_ON = "interrupted; finished work is kept, and the same command resumes"


def need(args: argparse.Namespace, *names: str, again: str) -> None:
    """Raise ValueError if a flag is missing; `again` is the flag that replaces all of them, for an existing folder."""
    for name in names:
        if not getattr(args, name):
            raise ValueError(f"--{name} is needed; use --{name} VALUE, or --{again} DIR for an existing folder")


def add_what(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--data-dir", type=Path, metavar="DIR", help="folder with benchmarks' files (default: the hub)")
    group.add_argument("--limit", type=int, metavar="N", help="use only the first N problems of each (default: all)")
    group.add_argument("--output", type=Path, metavar="DIR", help="folder to write, or to resume in")


def benchmarks(args: argparse.Namespace, names: str, k: int) -> list[Benchmark]:
    """Return the benchmarks of `names`, or a user's file as a benchmark with `k` completions a problem.

    Raises:
        ValueError: there is no such benchmark or file.
    """
    if Path(names).is_file() and not names.endswith(KINDS):
        raise ValueError(f"{names} is a file of no known kind; use one of {', '.join(KINDS)}")
    if names.endswith(KINDS):
        return [custom(Path(names), FILES.get(args.task, args.task), args.prompt_key, args.label_key, k)]
    return parse_names(names)


def plan(args: argparse.Namespace, chosen: Sequence[Benchmark], k: int | None, token_ids: bool = False) -> Plan:
    """Return the plan of what to sample, with `k` completions a problem (None: each benchmark's number).

    Raises:
        ValueError: there is no such model, a benchmark's file is missing, a value is out of its range, or a reward file
            gives no reward.
        JailError: no jail works on this machine, and a grader needs one.
    """
    check_model("--model", args.model, args.trust_remote_code)
    _check_template(args)
    result = Plan(
        model=args.model,
        questions=[question for each in chosen for question in load_questions(each, args.data_dir, args.limit)],
        tasks={benchmark.name: benchmark.task for benchmark in chosen},
        ks={benchmark.name: k or benchmark.k for benchmark in chosen},
        sampling=frame.knobs_of(args, Sampling),
        prompt_format=PromptFormat(args.prompt_format == "chat", args.input_template),
        max_model_len=args.max_model_len,
        token_ids=token_ids,
    )
    _try_graders(args, {*result.tasks.values()}, result.questions[0])
    return result


def _try_graders(args: argparse.Namespace, tasks: set[str], first: Question) -> None:
    """Look for a jail, and ask a reward file, which is the only task then, for the reward of a test response."""
    graders = [GRADERS[task] for task in tasks if task in GRADERS]
    if any(grader.start_workers for grader in graders):
        find_jail(args.allow_unsandboxed)
    if graders:
        return
    (file,) = tasks
    prompt = "\n\n".join(message["content"] for message in first.messages)
    try:
        _, of_label = ask_file("--task", file, args.timeout, f"question {first.id}", prompt, first.label)
        if warning := label_warning(file, first.label, of_label):
            print(f"[Warning] {warning}; such responses will have no grade", file=sys.stderr)
    except LineError as error:
        raise ValueError(str(error).replace("--data.label_key", "--label-key")) from error


def _check_template(args: argparse.Namespace) -> None:
    template, flag = args.input_template, "--input-template"
    if template is None:
        return
    if args.prompt_format == "chat":
        raise ValueError(f"{flag} has no effect with a chat template: got {template!r}; use --prompt-format plain")
    try:
        template.format("")
    except (LookupError, ValueError) as error:
        raise ValueError(
            f"{flag} is no template ({error}): got {template!r}; use a single {{}} and no other braces"
        ) from error
    if "{}" not in template:
        raise ValueError(f"{flag} has no {{}} for the text: got {template!r}; use e.g. 'Question: {{}} Answer:'")


def add_own_file(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("your file")
    about = f"grader: {', '.join(NAMES)}, or a .py file with reward_func (default: math)"
    group.add_argument("--task", default="math", help=about)
    about = "column of the problem: a chat, or a text, to which the grader's system turn is added, if it has one"
    group.add_argument("--prompt-key", default="prompt", help=f"{about} (default: prompt)")
    about = "column of the answer or tests, or several for a .py file, separated by commas (default: label)"
    group.add_argument("--label-key", default="label", help=about)


def add_sampling(group: argparse._ArgumentGroup, kind: type[Sampling] = Sampling) -> None:
    frame.add_knobs(group, kind)
    about = "chat: the model's chat template; plain: the turns' texts with a blank line between them (default: chat)"
    group.add_argument("--prompt-format", choices=("chat", "plain"), default="chat", help=about)
    about = "with --prompt-format plain: put the text into this template, in place of {} (default: the text alone); the"
    group.add_argument("--input-template", metavar="TEXT", help=f"{about} same as training's --data.input_template")


def add_engines(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engines")
    frame.add_knobs(group, EngineSettings)
    about = "most tokens of prompt and answer together (default: the model's limit)"
    group.add_argument("--max-model-len", type=int, metavar="TOKENS", help=about)
    about = "show all output of Ray and vLLM; without it this output goes only to OUTPUT/logs"
    group.add_argument("--verbose", action="store_true", help=about)


def add_grading(parser: argparse.ArgumentParser) -> None:
    frame.add_knobs(parser.add_argument_group("grading"), GradingConfig)
