"""Train with OpenRLHF and SHEAR: `python -m openrlhf_shear.cli.train_ppo_ray --help`.

A command line becomes words without files and older spellings, the words become the description of a run (`line.run`),
and checks judge it. OpenRLHF's main then runs with the description's flags.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from openrlhf_shear.config.refusal import Findings
from openrlhf_shear.line import frame, spelling
from openrlhf_shear.line.flags import PROG, add_flags
from openrlhf_shear.line.home import ensure_home
from openrlhf_shear.line.run import INSTALL, Run, describe, for_openrlhf, idle, twice
from openrlhf_shear.preflight import memory as memory_check
from openrlhf_shear.preflight.checks import check
from openrlhf_shear.preflight.layout import place, placement_words
from openrlhf_shear.preflight.models import Models, read_models
from openrlhf_shear.preflight.resources import hold, run_folder
from openrlhf_shear.train import upstream
from openrlhf_shear.train.checkpoints import fingerprint, finished
from openrlhf_shear.train.nodes import machine
from openrlhf_shear.train.screen.console import Console
from openrlhf_shear.train.screen.story import ending
from openrlhf_shear.train.start import attempts


@dataclass(frozen=True)
class Verdict:
    """What a command line means, and what is wrong with it."""

    run: Run | None  # None after a refusal
    findings: Findings
    words: list[str]  # an equivalent command line that depends on no --config file and on no default placement
    models: Models
    fingerprint: fingerprint.Fingerprint | None  # of the run's checkpoints, without the rows; None after a refusal
    parser: argparse.ArgumentParser
    first: bool  # the user started this process, rather than a supervisor


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the checked command line as OpenRLHF's main takes it (`run.for_openrlhf`).

    Raises SystemExit as `read`.
    """
    verdict = read(argv)
    return for_openrlhf(verdict.run, fingerprint=verdict.fingerprint)


def read(argv: Sequence[str]) -> Verdict:
    """Return the verdict on a command line that can be used; print notes and warnings.

    Raises:
        SystemExit: help was printed (0), flags or combinations are wrong (2), or OpenRLHF is missing or differs (1).
    """
    verdict = examine(argv)
    _show(verdict)
    return verdict


def build_parser() -> argparse.ArgumentParser:
    """Return OpenRLHF's parser with the flags of this fork."""
    parser = add_flags(upstream.parser())
    parser.allow_abbrev = False  # an abbreviated flag would not be among the flags that a command sets
    return parser


def examine(argv: Sequence[str]) -> Verdict:
    """Find everything that is wrong with a command line. A step that lacks its input ends the search.

    Raises:
        SystemExit: help was printed (0), or OpenRLHF is missing or differs (1).
    """
    try:
        upstream.require("OpenRLHF", upstream.OPENRLHF_VERSION, "cluster", INSTALL)
        parser = build_parser()
    except (ModuleNotFoundError, RuntimeError) as error:
        raise SystemExit(f"{PROG}: error: {error}") from error
    findings, words, run, models, mark = Findings(), [*argv], None, {}, None
    first = attempts.ATTEMPT not in os.environ  # it checks for later attempts too
    with findings.caught():
        words = spelling.expand(words, parser, findings.refusals)
        words, notes = spelling.translate(words, findings.refusals)
        findings.notes += notes
        args, refused = frame.parse(parser, words)
        findings.refusals += refused
        set_flags = {word.partition("=")[0].removeprefix("--") for word in words if word.startswith("--")}
        placed = place(vars(args), set_flags, machine.cluster_gpus, findings)
        run = describe(vars(args) | placed, set_flags, findings)
        models = read_models(run)
        rows = check(run, models, findings) if first else None
        mark = fingerprint.of_run(run, models)
        findings.take(fingerprint.check(run, mark, rows) if first else (), twice(run))
        findings.take(() if findings.refusals else idle(run))
        words = words + placement_words(placed)
    return Verdict(None if findings.refusals else run, findings, words, models, mark, parser, first)


def _show(verdict: Verdict) -> None:
    for note in verdict.findings.notes:
        print(note, file=sys.stderr)
    if verdict.run is None:
        frame.refuse(verdict.parser, verdict.findings.shown())


@frame.until_the_reader_leaves()
def main(argv: Sequence[str] | None = None) -> None:
    ensure_home()
    verdict = examine(sys.argv[1:] if argv is None else argv)
    run, first = verdict.run, verdict.first
    if run.json if run else "--json" in verdict.words:
        refusals = [asdict(each) for each in verdict.findings.ordered()]
        notes = [asdict(each) for each in verdict.findings.notes]
        print(json.dumps({"ok": run is not None, "refusals": refusals, "told": notes}, indent=1))
        raise SystemExit(0 if run else 2)
    _show(verdict)
    if first and (nothing := finished.nothing_left(run)):
        print(nothing)
        return
    if first:
        memory_check.show(run, verdict.models)
    if run.dry_run:
        print("dry run: the line can be used as far as can be seen without starting anything")
        return
    with _locked(verdict) if first else nullcontext():
        if first:
            _supervise(verdict)
        with ending():
            with attempts.stopping(run.train.grace_seconds):
                from openrlhf_shear.train.start.launch import launch

                launch(run, for_openrlhf(run, fingerprint=verdict.fingerprint))
            finished.mark(run)


def _locked(verdict: Verdict) -> TextIO:
    path = verdict.run.ckpt.path
    try:
        lock = hold(Path(path))
    except OSError as error:
        verdict.parser.error(f"--ckpt.path {path} cannot be written to: {error}")
    if lock is None:
        frame.refuse(verdict.parser, f"ckpt.path {path}: another run starts there; wait for it, or stop it")
    return lock


def _supervise(verdict: Verdict) -> None:
    """Write the run's file. Unless the run is verbose and never restarts, run it as a child process, and exit."""
    run, folder = verdict.run, run_folder(verdict.run)
    command = [sys.executable, "-u", "-m", "openrlhf_shear.cli.train_ppo_ray", *verdict.words]
    try:
        spelling.write(folder, run, verdict.parser)
        console = None if run.verbose else Console(folder / "logs" / "train.log", command)
    except OSError as error:
        verdict.parser.error(f"the run's folder cannot be written: {error}")
    if run.train.max_restarts or console:
        raise SystemExit(attempts.supervise(command, run.train.max_restarts, console))


if __name__ == "__main__":
    main()
