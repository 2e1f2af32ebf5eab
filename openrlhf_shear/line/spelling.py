"""The words of a command line: flags from YAML files (`--config`), older spellings, and a file to start a run again.

Keys of a file are the flags without dashes, nested or not; flags without a value take true or false:

    actor:
      model_name_or_path: Qwen/Qwen2.5-Math-7B
      adam.lr: 1.0e-6
    train.colocate_all: true

The older spellings are those of OpenRLHF 0.8 to 0.11.1; their names are in legacy.toml, and docs/migration.md has them
as a table. Defaults are those of 0.11.2.
"""

import argparse
import re
import shlex
import tomllib
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from openrlhf_shear.config import foreign
from openrlhf_shear.config.refusal import Note, Refusal, did_you_mean
from openrlhf_shear.config.secrets import hidden
from openrlhf_shear.data.files import DataError, require
from openrlhf_shear.line import frame
from openrlhf_shear.line.run import Run, placement_flags

NAME = "run.yaml"
PRESETS = Path(__file__).parent / "presets"
PRESET_NAMES = sorted(file.stem for file in PRESETS.glob("*.yaml"))
_OF_A_RESUME = ("ckpt.load_enable", "ckpt.accept_changes")
_NOT_KEPT = ("config", "help", "dry_run", "json", "verbose", *_OF_A_RESUME)

_TABLE = tomllib.loads(Path(__file__).with_name("legacy.toml").read_text(encoding="utf-8"))
RENAMES: dict[str, tuple[str, ...]] = {
    f"--{old}": tuple(f"--{name}" for name in ([new] if isinstance(new, str) else new))
    for old, new in _TABLE["renames"].items()
}
SWITCHES: dict[str, list[str]] = {f"--{old}": [f"--{new}", value] for old, (new, value) in _TABLE["switches"].items()}
IGNORED: dict[str, int] = {f"--{old}": values for old, values in _TABLE["ignored"].items()}
LENGTHS: dict[str, int] = {f"--{old}": default for old, default in _TABLE["lengths"].items()}
CORRECTION_SWITCHES, CORRECTION_TYPES, CORRECTION_ICEPOP = (
    [f"--{name}" for name in _TABLE["correction"][kind]] for kind in ("switches", "types", "icepop")
)
CORRECTIONS: dict[str, list[str]] = _TABLE["correction"]["values"]
_TRUTHS = ("true", "false", "yes", "no", "1", "0")
_HERE = ' in "<unicode string>",'  # of YAML's errors
_CORRECTION = "--algo.advantage.is_correction_"


def expand(argv: Sequence[str], parser: argparse.ArgumentParser, refusals: list[Refusal]) -> list[str]:
    """Return `argv` with the flags of its `--config` files in front, so that flags on the command line win.

    Args:
        refusals: takes all keys that are no flags or stand there twice, and values of another kind.

    Raises:
        ValueError: a file is missing, or is not a YAML mapping.
    """
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", nargs="+", action="extend", default=[])
    found, rest = finder.parse_known_args(list(argv))
    values: dict[str, tuple[str, object]] = {}
    words: list[str] = []
    machines: dict[str, None] = {}
    for name in found.config:  # later files win
        pairs = list(_flat(_read(name)))
        for key, count in Counter(key for key, _ in pairs).items():
            if count > 1:
                refusals.append(Refusal("", f"--config {name}: {key} is there twice; keep one"))
        values |= {key: (name, value) for key, value in pairs}
        if name in PRESET_NAMES and "device" in dict(pairs):
            machines[name] = None
    if len(machines) > 1:
        refusals.append(Refusal("", f"--config {' '.join(machines)}: each is for another machine; keep one"))
    for key, (name, value) in values.items():
        try:
            words += _words(key, value, name, parser)
        except ValueError as error:
            refusals.append(Refusal("", str(error)))
    return words + rest


class _Mapping(list):
    """Keys and values of a YAML mapping, those that stand there twice too."""


class _Loader(yaml.SafeLoader):
    """YAML 1.2's booleans, numbers as they are written, which flags convert, and mappings as `_Mapping`.

    `off` and `on` are texts, as `algo.advantage.is_correction_level: off` needs. A run's name `2026_11_28` and a folder
    `007` stay as they are.
    """


_BOOL = "tag:yaml.org,2002:bool"
_AS_WRITTEN = {_BOOL, *(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))}
_Loader.yaml_implicit_resolvers = {
    first: [resolver for resolver in resolvers if resolver[0] not in _AS_WRITTEN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_constructor("tag:yaml.org,2002:map", lambda loader, node: _Mapping(loader.construct_pairs(node, deep=True)))
_Loader.add_implicit_resolver(_BOOL, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def _read(name: str) -> _Mapping:
    file = PRESETS / f"{name}.yaml" if name in PRESET_NAMES else Path(frame.spelled_out(name))
    if not file.is_file():
        problem = "is not a file" if file.exists() else "is not there"
        several = (
            " (several are separated by spaces)"
            if "," in name
            else did_you_mean(name.casefold().removesuffix(".yaml"), PRESET_NAMES)
        )
        raise ValueError(f"--config {name} {problem}{several}; use a YAML file, or one of {', '.join(PRESET_NAMES)}")
    try:
        require(str(file))
        content = yaml.load(file.read_text(encoding="utf-8"), _Loader)
    except DataError as error:
        raise ValueError(f"--config {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"--config {name} is not UTF-8; use iconv -f latin1 -t utf-8 to convert it") from error
    except yaml.YAMLError as error:
        raise ValueError(f"--config {name} is no YAML: {' '.join(str(error).replace(_HERE, '').split())}") from error
    if content is None:
        raise ValueError(f"--config {name} is empty; use KEY: VALUE lines")
    if not isinstance(content, _Mapping):
        raise ValueError(f"--config {name} must hold KEY: VALUE lines: got {type(content).__name__}")
    return content


def _flat(content: list, above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in content:
        if isinstance(value, _Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _words(key: str, value: object, file: str, parser: argparse.ArgumentParser) -> list[str]:
    flag = f"--{key}"
    action = parser._option_string_actions.get(flag)
    if key in ("config", "help"):
        raise ValueError(f"--config {file}: {key} is for the command line; name all files there, separated by spaces")
    if action is None and (flag in RENAMES or flag in SWITCHES):
        if isinstance(value, list):
            return [flag, *map(str, value)]
        return [] if value in (None, False) else [flag] if value is True else [f"{flag}={value}"]
    if action is None and key in foreign.NAMES:
        trainer, use = foreign.NAMES[key]
        raise ValueError(f"--config {file}: {key} is {trainer}'s flag; use {use}")
    if action is None:
        near = foreign.near(key) or did_you_mean(flag, parser._option_string_actions, "{}").removeprefix("--")
        raise ValueError(f"--config {file}: {key} is no flag{f'; did you mean {near}?' if near else ''}")
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ValueError(f"--config {file}: {key} must be true or false: got {value!r}")
        return [flag] if value == action.const else []
    if value is None:
        return []
    if action.nargs is not None:
        return [flag, *map(str, value if isinstance(value, list) else [value])]
    if isinstance(value, list):
        use = ",".join(map(str, value))
        raise ValueError(f"--config {file}: {key} takes one value: got {value!r}; use a text, e.g. {use}")
    return [f"{flag}={value}"]


def translate(argv: Sequence[str], refusals: list[Refusal]) -> tuple[list[str], list[Note]]:
    """Return `argv` with older spellings replaced, and notes on what was replaced and what was ignored.

    A flag takes the place of the old flag, since the last flag on the command line wins. The sum of two lengths has no
    such place: it goes to the front, where every other flag overrides it.

    Args:
        refusals: takes switches with a value, unknown types of a correction, and lengths that are no whole numbers.
    """
    line: list[str] = []
    renamed: dict[str, str] = {}
    ignored: dict[str, None] = {}
    lengths: dict[str, int] = {}
    corrects, correction = False, "tis"  # switch and type, in any order; without the switch a type does nothing
    rest = deque(argv)
    while rest:
        token = rest.popleft()
        flag, equals, value = token.partition("=")
        if flag in RENAMES:
            renamed[flag] = " ".join(RENAMES[flag])
            # If one flag replaces it, its values follow on the command line and stay as they are.
            values = _take(rest, len(rest)) if len(RENAMES[flag]) > 1 else []
            line += [word for name in RENAMES[flag] for word in (name + equals + value, *values)]
        elif flag in SWITCHES:
            if equals or (rest and rest[0].lower() in _TRUTHS):
                got = value if equals else rest.popleft()
                refusals.append(
                    Refusal(flag[2:], "takes no value", repr(got), f"{flag} alone, or true or false in a file")
                )
                continue
            renamed[flag] = " ".join(SWITCHES[flag])
            line += SWITCHES[flag]
        elif flag in LENGTHS:
            text = value if equals else "".join(_take(rest, 1))
            if text.isdecimal():
                lengths[flag] = int(text)
            else:
                use = "--data.max_len and --rollout.max_new_tokens"
                refusals.append(Refusal(flag[2:], "must be a whole number", repr(text), use))
        elif flag in IGNORED:
            ignored[flag] = None
            if not equals:
                _take(rest, IGNORED[flag])
        elif flag in (*CORRECTION_SWITCHES, *CORRECTION_TYPES, *CORRECTION_ICEPOP):
            if flag in CORRECTION_TYPES:
                correction = value if equals else "".join(_take(rest, 1))
            elif flag in CORRECTION_ICEPOP:
                correction = "icepop"
            corrects |= flag in CORRECTION_SWITCHES
            if correction not in CORRECTIONS:
                known = f"one of {', '.join(CORRECTIONS)}, or {_CORRECTION}level and {_CORRECTION}mode"
                refusals.append(Refusal(flag[2:], "is not known", repr(correction), known))
                correction = "tis"
            level, mode = CORRECTIONS[correction]
            flags = [f"{_CORRECTION}level", level, f"{_CORRECTION}mode", mode] if corrects else []
            renamed[flag] = " ".join(flags) or "(off)"
            line += flags
        else:
            line.append(token)
    if lengths:
        prompt, response = (lengths.get(flag, default) for flag, default in LENGTHS.items())
        sums = ["--data.max_len", str(prompt + response), "--rollout.max_new_tokens", str(response)]
        renamed[" ".join(lengths)] = " ".join(sums)
        line = sums + line
    notes = []
    if renamed:
        spellings = ", ".join(f"{old} -> {new}" for old, new in renamed.items())
        notes.append(Note(f"older spellings of OpenRLHF were used; in 0.11 they are: {spellings}", "Info"))
    notes += [Note(f"{flag} no longer exists in OpenRLHF 0.11; ignored") for flag in ignored]
    return line, notes


def _take(rest: deque[str], most: int) -> list[str]:
    """Pop up to `most` values off the front; a value never starts with `--` (it may be a negative number)."""
    values: list[str] = []
    while rest and len(values) < most and not rest[0].startswith("--"):
        values.append(rest.popleft())
    return values


def write(folder: Path, run: Run, parser: argparse.ArgumentParser) -> Path:
    """Write the flags that differ from their defaults, nested by section and without secrets; return the file.

    Nodes and GPUs of models are always written: without them the same run would get the machine's default placement.

    Raises:
        OSError: it cannot be written.
    """
    content, left_out, placement = {}, [], placement_flags(run.flags)
    for action in parser._actions:
        name = action.option_strings[0].removeprefix("--")
        value = run.flags.get(action.dest, action.default)
        if name in _NOT_KEPT or (value == action.default and name not in placement):
            continue
        if hidden(value) != value:
            left_out.append(name)
            continue
        section, dot, knob = name.partition(".")
        (content.setdefault(section, {}) if dot else content)[knob if dot else section] = value
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / NAME
    again = shlex.join([*parser.prog.split(), "--config", str(file)])
    lines = [f"# The same run again, from {Path.cwd()}:  {again}"]
    lines += [f"# Secret, to be given again: {name}" for name in left_out]
    file.write_text("\n".join(lines) + "\n" + yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    return file
