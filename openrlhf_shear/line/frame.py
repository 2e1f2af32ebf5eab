"""Shared parts of the commands: the parser, the exit codes, and progress bars.

A command is its flags and a function of the parsed arguments; `command` joins the two. Exit codes:

    0    success
    1    the machine lacks something (a jail, a free port), or the outcome is bad
    2    the command line cannot be used, or a file, model or data set that it names
    130  interrupted
"""

import argparse
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import Field, fields, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import NoReturn, get_args, get_type_hints

from openrlhf_shear.config import foreign
from openrlhf_shear.config.refusal import LineError, Refusal, did_you_mean
from openrlhf_shear.config.secrets import hidden
from openrlhf_shear.data.files import not_writable
from openrlhf_shear.line import prog
from openrlhf_shear.line.home import ensure_home
from openrlhf_shear.rewards.jail import JailError

_WORDINGS = ("input_template", "system", "separator")  # flags with texts for a model
_VARIABLE = re.compile(r"\$\{(\w+)\}|^\$(\w+)(?=/|$)")
_OF_VERL = re.compile(r"[+~]*\w+(\.\w+)+=")
_DASHED = re.compile("--|[-–—][^-\\d.]")  # a flag, or what was meant as one; not a negative number


@contextmanager
def until_the_reader_leaves() -> Iterator[None]:
    """End the program without a word if the reader of its output leaves (`| head -3`), with a shell's exit code."""
    try:
        yield
    except BrokenPipeError:
        if not _is_closed():  # another pipe broke
            raise
        sys.exit(128 + signal.SIGPIPE)
    finally:
        _is_closed()


def _is_closed() -> bool:
    """Flush stdout; if nobody reads it, drop what is left, or Python would complain of it at its exit."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


class Shortfall(Exception):
    """The machine lacks something, or the outcome is bad."""


def command(
    flags: Callable[[argparse.ArgumentParser], None],
    about: str | None,
    epilog: str = "",
    usage: str | None = None,
    refused: tuple[type[Exception], ...] = (),
    interrupted: str = "interrupted",
) -> Callable[[Callable[[argparse.Namespace], None]], Callable[..., None]]:
    """Return a decorator that turns a function of parsed arguments into a command, a function of `argv`.

    Without `argv` the command parses the program's arguments. It raises SystemExit if the exit code is not 0; stderr
    then has a single line `PROG: error: ...`, without the usage.

    Args:
        flags: adds the command's flags to a parser.
        about, epilog, usage: texts of its help; `{prog}` in them is the command. A usage replaces the list of flags.
        refused: exceptions, besides ValueError and OSError, that mean exit code 2.
        interrupted: message after Ctrl-C.
    """

    def decorator(work: Callable[[argparse.Namespace], None]) -> Callable[..., None]:
        called = prog(Path(work.__code__.co_filename).stem)

        def new_parser() -> argparse.ArgumentParser:
            shown = {"epilog": epilog.replace("{prog}", called), "usage": usage and usage.replace("{prog}", called)}
            raw = argparse.RawDescriptionHelpFormatter
            parser = argparse.ArgumentParser(prog=called, description=about, formatter_class=raw, **shown)
            flags(parser)
            return plainly(parser)

        @until_the_reader_leaves()
        def main(argv: Sequence[str] | None = None) -> None:
            parser = new_parser()
            words = sys.argv[1:] if argv is None else argv
            args = parser.parse_args(words)
            if wrong := [*_places(parser, args, words), *_outputs(parser, args)]:
                refuse(parser, str(LineError(*wrong)))
            ensure_home()
            try:
                work(args)
            except KeyboardInterrupt:
                parser.exit(130, f"{called}: {interrupted}\n")
            except BrokenPipeError:
                raise
            except (Shortfall, JailError) as error:
                sys.exit(f"{called}: error: {error}")
            except (ValueError, OSError, *refused) as error:
                if isinstance(error, RuntimeError) and error.__cause__:  # of a rule: its author needs the traceback
                    traceback.print_exception(error.__cause__)
                refuse(parser, str(error))

        main.parser = new_parser
        return main

    return decorator


def plainly(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Return the parser with errors in a single line: no usage, but the flag or choice that was probably meant."""
    parser.error = lambda message: refuse(parser, f"{message}{_meant(parser, message)}; see --help")
    return parser


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.Namespace, list[Refusal]]:
    """Parse a command line and refuse every flag that cannot be parsed, so that all of them are reported at once."""
    words, refused = list(words), []
    parser.exit_on_error = False
    while True:
        try:
            args, unknown = parser.parse_known_args(words)
            break
        except argparse.ArgumentError as error:
            names = error.argument_name.split("/") if error.argument_name else []
            flag = names[-1].removeprefix("--") if names else ""
            if value := re.fullmatch("ignored explicit argument (.*)", error.message):
                refused.append(Refusal(flag, "takes no value", value[1], f"--{flag} alone, or leave it out"))
            else:
                refused.append(Refusal(flag, f"{error.message}{_meant(parser, error.message)}; see --help"))
            shorter = _without(parser, words, names)
            if shorter == words:
                raise LineError(*refused) from error
            words = shorter
    for flag, word in _given_to_switches(parser, words):
        refused.append(Refusal(flag, "takes no value", repr(word), f"--{flag} alone, or leave it out"))
        unknown.remove(word)
    behind = False  # whether the word may be the value of an unknown flag
    for word in unknown:
        if _DASHED.match(word) or not behind or _OF_VERL.match(word):
            refused.append(_unknown(parser, words, word))
        behind |= bool(_DASHED.match(word))
    return args, refused + list(_places(parser, args, words))


def _places(parser: argparse.ArgumentParser, args: argparse.Namespace, words: Sequence[str]) -> Iterator[Refusal]:
    """Spell out the texts and paths of `args`; refuse empty texts, and variables that the environment does not have."""
    empty = [before for before, word in pairwise(("", *words)) if before.startswith("--") and not word]
    for flag in empty + [word[:-1] for word in words if re.fullmatch("--[^=]+=", word)]:
        action = parser._option_string_actions.get(flag)
        if action and action.default != "" and not flag.endswith(_WORDINGS):
            use = "a value, or no such flag (is a variable of the shell not set?)"
            yield Refusal(flag.removeprefix("--"), "is empty", "''", use)
    for name, value in vars(args).items():
        if not name.endswith(_WORDINGS):
            try:
                setattr(args, name, spelled_out(value))
            except KeyError as error:
                use = "a variable that is set, or the path itself"
                yield Refusal(name, f"names a variable {error} that is not set", repr(hidden(value)), use)


def _outputs(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Iterator[Refusal]:
    """Refuse an --output that cannot be written, before anything is computed for it; DIR in the help is a folder."""
    groups = [each.choices.values() for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    actions = [action for each in (parser, *chain.from_iterable(groups)) for action in each._actions]
    folders = {action.dest for action in actions if action.metavar == "DIR"}
    for name in ("output", "out"):
        path = getattr(args, name, None)
        if not isinstance(path, Path):
            continue
        (problem,) = not_writable(path if name in folders else path.parent)
        problem = problem or ("it is a folder" if name not in folders and path.is_dir() else "")
        if problem:
            yield Refusal(f"--{name}", f"cannot be written to: {problem}", repr(str(path)), "another place")


def spelled_out(value):
    """Return a text or path, or a list of them, with `~` and the environment's variables replaced; others unchanged.

    Variables are ${NAME}, and $NAME at the beginning. Raises KeyError: there is no such variable.
    """
    if isinstance(value, list):
        return [*map(spelled_out, value)]
    if not isinstance(value, str | Path):
        return value
    text = _VARIABLE.sub(lambda found: os.environ[found[1] or found[2]], str(value))
    return type(value)(",".join(map(os.path.expanduser, text.split(","))))


def _unknown(parser: argparse.ArgumentParser, words: Sequence[str], word: str) -> Refusal:
    """Return the refusal of a word that is no flag, or stands behind a flag that has its value."""
    elsewhere = word.lstrip("-+").partition("=")[0]
    if elsewhere in foreign.NAMES and (_DASHED.match(word) or "=" in word):
        trainer, use = foreign.NAMES[elsewhere]
        return Refusal(elsewhere, f"is {trainer}'s flag", use=use)
    if _DASHED.match(word):
        name = word.lstrip("-–—").partition("=")[0]
        dashes = "" if word.startswith("--") else ", as flags begin with two dashes"
        meant = _meant(parser, f"unrecognized arguments: --{name}")
        return Refusal(name, f"is no flag{dashes}{meant}; see --help")
    before = [each for each in words[: words.index(word)] if each.startswith("--")][-1:]
    if "=" in word or not before or before[0] not in parser._option_string_actions:
        return Refusal(word.partition("=")[0], "is no flag; see --help")
    return Refusal(before[0][2:], f"takes one value, and {word!r} follows it; use commas or quotes for several words")


def _given_to_switches(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[tuple[str, str]]:
    """Return (flag, word) for each word behind a flag that takes no value."""
    switches = {name for name, action in parser._option_string_actions.items() if action.nargs == 0}
    pairs = [pair for pair in pairwise(words) if pair[0] in switches and not _DASHED.match(pair[1])]
    return [(flag.removeprefix("--"), word) for flag, word in pairs]


def _without(parser: argparse.ArgumentParser, words: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the words without a flag and its values; the flag may be abbreviated."""
    shorter, dropping = [], False
    for word in words:
        if word.startswith("--"):
            flag = word.partition("=")[0]
            known = flag in parser._option_string_actions
            dropping = flag in names if known else any(name.startswith(flag) for name in names)
        if not dropping:
            shorter.append(word)
    return shorter


def refuse(parser: argparse.ArgumentParser, problem: str) -> NoReturn:
    """Exit with code 2 and the problem as error message."""
    parser.exit(2, f"{parser.prog}: error: {hidden(problem)}\n")


def _meant(parser: argparse.ArgumentParser, message: str) -> str:
    """Return a hint for argparse's error message, or "".

    >>> parser = argparse.ArgumentParser()
    >>> _meant(parser, "unrecognized arguments: --hlep"), _meant(parser, "invalid choice: 'mx' (choose from 'max')")
    (' (did you mean --help?)', ' (did you mean max?)')
    """
    if choice := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
        known = re.findall(r"[^', ]+", choice[2])
        return foreign.meant(choice[1], known)
    if flag := re.match(r"unrecognized arguments: --([^= ]+)", message):
        known = [name.removeprefix("--") for name in parser._option_string_actions if name.startswith("--")]
        near = foreign.near(name := flag[1].replace("-", "_"))
        ends = [near] if near in known else [each for each in known if each.endswith(f".{name}")]
        return f" (did you mean --{ends[0]}?)" if ends else did_you_mean(flag[1], known, " (did you mean --{}?)")
    return ""


def add_knob(group: argparse._ArgumentGroup, config: type, knob: Field, flag: str) -> None:
    """Add a flag for a knob of the dataclass `config`, with the knob's type, choices, default, range and help."""
    about = knob.metadata["help"].replace("%", "%%")
    hint = get_type_hints(config)[knob.name]
    if hint is bool:
        group.add_argument(flag, action="store_true", default=knob.default, help=about)
    else:
        (kind,) = set(get_args(hint) or (hint,)) - {type(None)}
        assert kind in (int, float, str), f"no flag can be made of {hint}"
        group.add_argument(flag, type=kind, default=knob.default, choices=knob.metadata["choices"], help=about)


def add_knobs(group: argparse._ArgumentGroup, config: type) -> None:
    """Add a flag for each knob of the dataclass `config`; `knobs_of` makes the object of parsed flags."""
    for each in fields(config):
        add_knob(group, config, each, "--" + each.name.replace("_", "-"))


def knobs_of(args: argparse.Namespace, config: type):
    """Return the dataclass `config` with the flags of `add_knobs`.

    Raises LineError: a value is out of its range, or two values do not go together; it names the flags.
    """
    try:
        return config(**{each.name: getattr(args, each.name) for each in fields(config)})
    except LineError as error:
        flags = ("--" + each.flag.rpartition(".")[2].replace("_", "-") for each in error.refusals)
        raise LineError(*map(lambda each, flag: replace(each, flag=flag), error.refusals, flags)) from None


def progress(items: Iterable, doing: str, total: int | None = None, unit: str = "it") -> Iterable:
    """Iterate over `items`, with a progress bar if stderr is a terminal."""
    from tqdm import tqdm

    return tqdm(items, doing, total, file=sys.stderr, disable=None, leave=False, unit=unit)


def write_json(path: Path, content: object) -> None:
    """Write the content as JSON, make the file's folder if it is missing, and print the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=True))
    print(f"{path}: written")


def at_least(args: object, **least: int) -> None:
    """Raise ValueError if an argument, an attribute of `args`, is below its minimum."""
    for name, low in least.items():
        if getattr(args, name) < low:
            raise ValueError(f"--{name.replace('_', '-')} must be at least {low}: got {getattr(args, name)}")
