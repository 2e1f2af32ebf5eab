"""Train with OpenRLHF and SHEAR: `python -m openrlhf_shear.cli.train_ppo_ray --help`."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat

from openrlhf_shear.config import CreditSpec
from openrlhf_shear.config.names import split
from openrlhf_shear.config.refusal import Findings, LineError, Refusal, Told
from openrlhf_shear.config.spec import CREDIT
from openrlhf_shear.line import frame, keys, legacy, placement, run_file
from openrlhf_shear.line.flags import KNOBS, OF_SEARCHES, PRM_RULES, PROG, add_flags, spec_of
from openrlhf_shear.line.values import ESTIMATOR, REWARD
from openrlhf_shear.preflight import checks, rules
from openrlhf_shear.preflight import memory as memory_check
from openrlhf_shear.preflight.outputs import run_folder
from openrlhf_shear.preflight.rules import long_search, traits
from openrlhf_shear.rewards.graders import file_of
from openrlhf_shear.train import upstream
from openrlhf_shear.train.checkpoints import fingerprint, finished
from openrlhf_shear.train.nodes import machine
from openrlhf_shear.train.screen.console import Console
from openrlhf_shear.train.screen.story import ending
from openrlhf_shear.train.start import attempts, signals


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the checked command line: a flat namespace with dotted names, of OpenRLHF's flags and the fork's.

    `credit` is a `CreditSpec` if the estimator is a credit rule, None otherwise. The flags that it holds are removed,
    and the estimator is "group_norm" in place of the rule's name, since OpenRLHF's own branches know that name.

    Raises SystemExit as `read`.
    """
    line = read(argv)
    return _finish(line)


@dataclass(frozen=True)
class Line:
    """A checked command line."""

    args: argparse.Namespace  # the flags as given
    spec: CreditSpec | None  # the credit rule; None for an estimator of OpenRLHF
    fingerprint: fingerprint.Fingerprint  # of the run's checkpoints, without the rows
    words: list[str]  # an equivalent command line that depends on no --config file and on no default placement
    parser: argparse.ArgumentParser


def read(argv: Sequence[str]) -> Line:
    """Return the checked line, with the flags of its --config files and default placement; print notes and warnings.

    Raises:
        SystemExit: help was printed (0), flags or combinations are wrong (2), or OpenRLHF is missing or differs (1).
    """
    line, findings, parser = examine(argv)
    for told in findings.told:
        print(told, file=sys.stderr)
    if line is None:
        frame.refuse(parser, findings.shown())
    return line


def build_parser() -> argparse.ArgumentParser:
    """Return OpenRLHF's parser with the flags of this fork.

    Raises:
        RuntimeError: OpenRLHF is missing or has an unknown structure (`upstream.parser`).
    """
    return add_flags(upstream.parser())


def examine(argv: Sequence[str]) -> tuple[Line | None, Findings, argparse.ArgumentParser]:
    """Return the checked line, or None after a refusal; all findings; and the parser.

    Raises:
        SystemExit: help was printed (0), or OpenRLHF is missing or differs (1).
    """
    force, argv = upstream.forced(argv)
    try:
        upstream.check_version(force)
        parser = build_parser()
    except RuntimeError as error:
        raise SystemExit(f"{PROG}: error: {error}") from error
    findings, line = Findings(), None
    rules.forget()
    with findings.caught():
        line = _examined(argv, parser, findings)
    return (None if findings.refusals else line), findings, parser


def _examined(argv: Sequence[str], parser: argparse.ArgumentParser, findings: Findings) -> Line:
    """Find everything that is wrong. A step that lacks its input ends this, by a `LineError` or after a refusal."""
    expanded = run_file.expand(argv, parser, findings.refusals)
    words, notes = legacy.translate(expanded)
    findings.take(notes)
    args, refused = frame.parse(parser, words)
    findings.refusals += refused
    values = vars(args)
    values[REWARD] = file_of(values[REWARD])
    placed = _place(args, run_file.flags_of(words), findings)
    given = [word for word in words if word.startswith(tuple(f"--{section}." for section in KNOBS))]
    spec, first = None, attempts.is_first()  # the first attempt has done the checks for later attempts
    with findings.caught():
        spec = spec_of(values)
        _refuse_both(spec, values[ESTIMATOR], given)
    if first:
        checks.check(values, findings)
    if spec is not None and first:
        findings.take(long_search(values, spec))
    made = fingerprint.of_run(values, spec)
    if first:
        findings.take(map(Told, fingerprint.check(values, made), repeat("Info")))
    _unclip(args, run_file.flags_of(words))
    findings.take(keys.take(values))
    if not findings.refusals:
        findings.take(_idle(spec, values[ESTIMATOR], given))
    return Line(args, spec, made, words + placed, parser)


def _place(args: argparse.Namespace, given: set[str], findings: Findings) -> list[str]:
    """Set the placement flags that the command line lacks in `args`, and return them as words."""
    values = vars(args)
    if not placement.is_open(values, given):
        return []
    chosen = placement.defaults(values, given, *machine.shape(args.device, args.device_memory))
    values.update(chosen)
    words = [word for flag, value in chosen.items() for word in (f"--{flag}", *([] if value is True else [f"{value}"]))]
    if "actor.num_gpus_per_node" in chosen:  # else other models just follow the actor
        findings.told.append(Told(f"default placement of the models: {' '.join(words)}", "Info"))
    return words


def _unclip(args: argparse.Namespace, given: set[str]) -> None:
    """Drop OpenRLHF's default clip of -10 to 10 for estimators with a baseline, unless the flag is given.

    That range is meant for PPO's rewards. In earlier versions these estimators clipped only the rewards after the
    baseline, so they keep raw rewards unclipped.
    """
    flag = "reward.clip_range"
    if flag not in given and getattr(args, ESTIMATOR) not in ("gae", "reinforce"):
        setattr(args, flag, None)


def _refuse_both(spec: CreditSpec | None, estimator: str, given: Sequence[str]) -> None:
    """Refuse a knob that is set both by a flag and after the rule's name."""
    rule, *parts = split(estimator, "/") if spec else [estimator]
    for part in parts:
        knob = part.partition("=")[0]
        twice = [word for word in given if word.partition("=")[0] == f"--{rule}.{knob}"]
        if twice:
            told = f"{ESTIMATOR} {estimator} and {twice[0]} both set {knob}; use one of them"
            raise LineError(Refusal("", told))


def _idle(spec: CreditSpec | None, estimator: str, given: Sequence[str]) -> Iterator[Told]:
    """Warn of rule flags that have no effect with this estimator; with OpenRLHF's estimators none has an effect."""
    rule, idle = estimator.partition("/")[0], list(given)
    if spec is not None:
        needs = traits(spec).needs
        used = {rule, CREDIT} | ({"prm"} if "prm_scores" in needs else set())
        unused = set() if "hidden_states" in needs or rule == "text" else OF_SEARCHES
        flags = [(word, word.partition("=")[0]) for word in given]
        idle = [word for word, flag in flags if flag[2:].split(".")[0] not in used or flag in unused]
    if idle:
        sections = dict.fromkeys(word.removeprefix("--").split(".")[0] for word in idle)
        having = {"prm": PRM_RULES, CREDIT: ["shear"]}
        rules = [name for section in sections for name in having.get(section, [section])]
        told = f"{', '.join(idle)} has no effect with --{ESTIMATOR} {rule}"
        yield Told(f"{told}; use --{ESTIMATOR} {' or '.join(dict.fromkeys(rules))}")


def _finish(line: Line) -> argparse.Namespace:
    spec = line.spec
    values = {name: value for name, value in vars(line.args).items() if name.split(".")[0] not in KNOBS}
    values["fingerprint"] = line.fingerprint
    if spec is None:
        return argparse.Namespace(**values, credit=None)
    wanted = traits(spec)
    if values["actor.entropy_coef"] is None and wanted.kind == "update" and "entropies" in wanted.needs:
        values["actor.entropy_coef"] = 0.0  # OpenRLHF then computes entropies, and adds them with weight 0 to the loss
    return argparse.Namespace(**values | {ESTIMATOR: "group_norm", "credit": spec})


def _print_json(line: Line | None, findings: Findings, parser: argparse.ArgumentParser) -> int:
    """Print the findings as JSON; return the exit code."""
    refusals = [asdict(each) for each in findings.ordered()]
    told = [asdict(each) for each in findings.told]
    print(json.dumps({"ok": line is not None, "refusals": refusals, "told": told}, indent=1))
    return 0 if line else 2


@frame.until_the_reader_leaves()
def main(argv: Sequence[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    if {"--dry_run", "--json"} <= {*argv}:
        raise SystemExit(_print_json(*examine(argv)))
    line = read(argv)
    first = attempts.is_first()
    if first and (said := finished.nothing_left(vars(line.args))):
        print(said)
        return
    if first:
        memory_check.show(vars(line.args))
    if line.args.dry_run:
        print("dry run: the line can be used as far as can be seen without starting anything")
        return
    args = _finish(line)
    folder, restarts = run_folder(vars(args)), vars(args)["train.max_restarts"]
    command = [sys.executable, "-u", "-m", "openrlhf_shear.cli.train_ppo_ray", *line.words]
    if first:
        try:
            run_file.write(folder, line.args, line.parser)
            console = None if args.verbose else Console(folder / "logs" / "train.log", command)
        except OSError as error:
            line.parser.error(f"the run's folder cannot be written: {error}")
        if restarts or console:
            raise SystemExit(attempts.supervise(command, restarts, console))
    with ending():
        with signals.stopping(vars(args)["train.grace_seconds"]):
            from openrlhf_shear.train.start.launch import launch

            launch(args)
        finished.mark(vars(args))


if __name__ == "__main__":
    main()
