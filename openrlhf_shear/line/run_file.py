"""Flags from YAML files (`--config`), and the file in a run's folder that starts the same run again.

Keys are the flags without dashes, nested or not; flags without a value take true or false:

    actor:
      model_name_or_path: Qwen/Qwen2.5-Math-7B
      adam.lr: 1.0e-6
    train.colocate_all: true
"""

import argparse
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from openrlhf_shear.config.refusal import LineError, Refusal, did_you_mean
from openrlhf_shear.config.secrets import hidden
from openrlhf_shear.line import foreign, legacy, placement
from openrlhf_shear.line.run import Run

NAME = "run.yaml"
PRESETS = Path(__file__).parent / "presets"
PRESET_NAMES = sorted(file.stem for file in PRESETS.glob("*.yaml"))
_OF_A_RESUME = ("ckpt.load_enable", "ckpt.accept_changes")
_NOT_KEPT = ("config", "help", "dry_run", "json", "verbose", *_OF_A_RESUME)


def expand(argv: Sequence[str], parser: argparse.ArgumentParser, refusals: list[Refusal] | None = None) -> list[str]:
    """Return `argv` with the flags of its `--config` files in front, so that flags on the command line win.

    Args:
        refusals: takes all keys that are no flags or stand there twice, and values of another kind; None raises them.

    Raises:
        ValueError: a file is missing, or is not a YAML mapping.
    """
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", nargs="+", action="extend", default=[])
    found, rest = finder.parse_known_args(list(argv))
    values: dict[str, object] = {}
    words: list[str] = []
    wrong: list[Refusal] = [] if refusals is None else refusals
    for name in found.config:  # later files win
        content = _read(name, wrong)
        values |= {key: (name, value) for key, value in _flat(content)}
    for key, (name, value) in values.items():
        try:
            words += _words(key, value, name, parser)
        except ValueError as error:
            wrong.append(Refusal("", str(error)))
    if wrong and refusals is None:
        raise LineError(*wrong)
    return words + rest


class _Loader(yaml.SafeLoader):
    """YAML 1.2's booleans, and numbers as they are written, which flags convert.

    `off` and `on` are texts, as `algo.advantage.is_correction_level: off` needs. A run's name `2026_11_28` and a folder
    `007` stay as they are.
    """


_BOOL = "tag:yaml.org,2002:bool"
_AS_WRITTEN = {_BOOL, *(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))}
_Loader.yaml_implicit_resolvers = {
    first: [resolver for resolver in resolvers if resolver[0] not in _AS_WRITTEN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def _read(name: str, wrong: list[Refusal]) -> dict:
    """Return the content of a file; add the keys that it has twice, of which YAML keeps the last, to `wrong`."""
    file = PRESETS / f"{name}.yaml" if name in PRESET_NAMES else Path(name)
    if not file.exists() or file.is_dir():
        several = " several are separated by spaces;" if "," in name else ""
        raise ValueError(f"--config {name} is not there;{several} use a YAML file, or one of {', '.join(PRESET_NAMES)}")
    try:
        text = file.read_text(encoding="utf-8")
        content = yaml.load(text, _Loader)
        twice = _twice(yaml.compose(text, _Loader))
    except UnicodeDecodeError as error:
        raise ValueError(f"--config {name} is not UTF-8; use iconv -f latin1 -t utf-8 to convert it") from error
    except yaml.YAMLError as error:
        raise ValueError(f"--config {name} is no YAML: {' '.join(str(error).split())}") from error
    if content is None:
        raise ValueError(f"--config {name} is empty; use KEY: VALUE lines")
    if not isinstance(content, dict):
        raise ValueError(f"--config {name} must hold KEY: VALUE lines: got {type(content).__name__}")
    for key, first, second in twice:
        wrong.append(Refusal("", f"--config {name}: {key} is there twice, in lines {first} and {second}; keep one"))
    return content


def _twice(node: yaml.Node) -> list[tuple[str, int, int]]:
    """Return (key, line, line) for every key that a file has twice, nested or dotted."""
    lines: dict[str, int] = {}
    found: list[tuple[str, int, int]] = []

    def look(mapping: yaml.Node, above: str) -> None:
        here: set[str] = set()
        for key, value in mapping.value:
            name, line = f"{above}{key.value}", key.start_mark.line + 1
            nested = isinstance(value, yaml.MappingNode)
            if name in here or (not nested and name in lines):
                found.append((name, lines[name], line))
            elif nested:
                look(value, f"{name}.")
            here.add(name)
            lines.setdefault(name, line)

    if isinstance(node, yaml.MappingNode):
        look(node, "")
    return found


def _flat(content: dict, above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _words(key: str, value: object, file: str, parser: argparse.ArgumentParser) -> list[str]:
    flag = f"--{key}"
    action = parser._option_string_actions.get(flag)
    if action is None and (flag in legacy.RENAMES or flag in legacy.SWITCHES):
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


def write(folder: Path, run: Run, parser: argparse.ArgumentParser) -> Path:
    """Write the flags that differ from their defaults, nested by section and without secrets; return the file.

    Nodes and GPUs of models are always written: without them the same run would get the machine's default placement.

    Raises:
        OSError: it cannot be written.
    """
    content, left_out, placed = {}, [], placement.placed(run.flags)
    for action in parser._actions:
        name = action.option_strings[0].removeprefix("--")
        value = run.flags.get(action.dest, action.default)
        if name in _NOT_KEPT or (value == action.default and name not in placed):
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


def flags_of(words: Sequence[str]) -> set[str]:
    """Return the dotted names of the flags among `words`."""
    return {word.partition("=")[0].removeprefix("--") for word in words if word.startswith("--")}
