"""What the commands share: a parser, how one ends, and how it shows progress, tables and numbers.

A command is a parser and a function of the parsed arguments; `run` joins the two. Its exit code says how it ended:

    0    it did what it was asked for
    1    the machine lacks something (a jail, a free port), or the outcome is not what it should be
    2    the line, or a file, model or data set that it names, cannot be used
    130  it was interrupted
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from openrlhf_shear.preflight import legacy
from openrlhf_shear.rewards.jail import JailError


class Shortfall(Exception):
    """The machine lacks something, or the outcome is not what it should be."""


def new_parser(
    command: str, description: str | None, epilog: str | None = None, usage: str | None = None
) -> argparse.ArgumentParser:
    """
    Args:
        command: a module of `openrlhf_shear.cli`.
        usage: what to show in place of all flags; `{prog}` in it and in the epilog is the command.
    """
    prog = f"python -m openrlhf_shear.cli.{command}"
    shown = {
        name: text and text.replace("{prog}", prog)
        for name, text in (("description", description), ("epilog", epilog), ("usage", usage))
    }
    return argparse.ArgumentParser(prog=prog, formatter_class=argparse.RawDescriptionHelpFormatter, **shown)


def run(
    parser: argparse.ArgumentParser,
    work: Callable[[argparse.Namespace], None],
    argv: Sequence[str] | None,
    refused: tuple[type[Exception], ...] = (),
    interrupted: str = "interrupted",
) -> None:
    """Parse `argv` (None: the program's own) and do the work.

    Args:
        refused: exceptions that mean, besides ValueError and OSError, that what the line names cannot be used.
        interrupted: what to say then.

    Raises:
        SystemExit: with another code than 0, as above; stderr has one line `PROG: error: ...`.
    """
    args = parser.parse_args(legacy.moved(sys.argv[1:] if argv is None else argv))
    try:
        work(args)
    except KeyboardInterrupt:
        parser.exit(130, f"{parser.prog}: {interrupted}\n")
    except (Shortfall, JailError) as error:
        sys.exit(f"{parser.prog}: error: {error}")
    except (ValueError, OSError, *refused) as error:
        parser.error(str(error))


def progress(items: Iterable, doing: str, total: int | None = None, unit: str = "it") -> Iterable:
    """`items`, with a bar on stderr where that is a terminal."""
    from tqdm import tqdm

    return tqdm(items, doing, total, file=sys.stderr, disable=None, leave=False, unit=unit)


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=True))
    print(f"{path}: written")


def at_least(args: argparse.Namespace, **least: int) -> None:
    """
    Raises:
        ValueError: a number of the line is below its least.
    """
    for name, low in least.items():
        if getattr(args, name) < low:
            raise ValueError(f"--{name.replace('_', '-')} must be at least {low}: got {getattr(args, name)}")
