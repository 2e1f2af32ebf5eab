"""Translation of old command lines: flags and defaults of OpenRLHF 0.8 to 0.11.1 into those of 0.11.2, and moved files.

A translated flag takes the place of the old flag, since the last flag on the command line wins. Flags without such a
place (the sum of two lengths, an old default) go to the front, where every other flag overrides them. The names are
in legacy.toml; docs/migration.md has them as a table.
"""

import os
import sys
import tomllib
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from openrlhf_shear.config.refusal import Told

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RENAMES: dict[str, tuple[str, ...]] = {
    f"--{old}": tuple(f"--{name}" for name in ([new] if isinstance(new, str) else new))
    for old, new in _TABLE["renames"].items()
}
OF_EVERY_RULE: dict[str, str] = {f"--{old}": f"--{new}" for old, new in _TABLE["of_every_rule"].items()}
SWITCHES: dict[str, list[str]] = {f"--{old}": [f"--{new}", value] for old, (new, value) in _TABLE["switches"].items()}
IGNORED: dict[str, int] = {f"--{old}": values for old, values in _TABLE["ignored"].items()}
LENGTHS: dict[str, int] = {f"--{old}": default for old, default in _TABLE["lengths"].items()}
CORRECTION_SWITCHES, CORRECTION_TYPES, CORRECTION_ICEPOP = (
    [f"--{name}" for name in _TABLE["correction"][kind]] for kind in ("switches", "types", "icepop")
)
CORRECTIONS: dict[str, list[str]] = _TABLE["correction"]["values"]
KEPT: dict[str, list[str]] = {f"--{name}": values for name, values in _TABLE["defaults"]["kept"].items()}
CHANGED: dict[str, list[str]] = {f"--{name}": row for name, row in _TABLE["defaults"]["changed"].items()}
MOVED: dict[str, str] = _TABLE["moved"]
_CORRECTION = "--algo.advantage.is_correction_"
_ESTIMATOR = "--algo.advantage.estimator"  # an old command that is used with this fork has it too
SINCE_0_10 = {f"--{name}" for name in _TABLE["defaults"]["since_0_10"]}


Tell = Callable[[Told], None]


def to_stderr(told: Told) -> None:
    print(told, file=sys.stderr)


def translate(argv: Sequence[str], tell: Tell = to_stderr) -> list[str]:
    """Return `argv` with older spellings and moved files replaced.

    Args:
        tell: receives notes on what was replaced, what was ignored, and which old defaults are kept.

    Raises:
        ValueError: the type of an importance-sampling correction is unknown, or a length is not a whole number.
    """
    line: list[str] = []
    renamed: dict[str, str] = {}
    shared: dict[str, str] = {}
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
        elif flag in OF_EVERY_RULE:
            shared[flag] = OF_EVERY_RULE[flag]
            line.append(OF_EVERY_RULE[flag] + equals + value)
        elif flag in SWITCHES:
            if equals:
                raise ValueError(f"{flag} is a switch without a value: got {value!r}; use true or false in a YAML file")
            renamed[flag] = " ".join(SWITCHES[flag])
            line += SWITCHES[flag]
        elif flag in LENGTHS:
            lengths[flag] = _whole(flag, value if equals else "".join(_take(rest, 1)))
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
                known = f"use one of {', '.join(CORRECTIONS)}, or {_CORRECTION}level and {_CORRECTION}mode"
                raise ValueError(f"{flag} is not known: got {correction!r}; {known}")
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
    if renamed:
        spellings = ", ".join(f"{old} -> {new}" for old, new in renamed.items())
        tell(Told(f"older spellings of OpenRLHF were used; in 0.11 they are: {spellings}", "Info"))
    if shared:
        spellings = ", ".join(f"{old} -> {new}" for old, new in shared.items())
        tell(Told(f"the flags that all credit rules share have new names: {spellings}", "Info"))
    for flag in ignored:
        tell(Told(f"{flag} no longer exists in OpenRLHF 0.11; ignored"))
    flat = [flag for old in (*renamed, *ignored) for flag in old.split() if "." not in flag]
    return moved(_old_defaults(argv, line, tell) if flat else line, tell)


def _old_defaults(argv: Sequence[str], line: list[str], tell: Tell) -> list[str]:
    """Return the translated `line` with the defaults of 0.8 and 0.9 in front that it does not set, and list them.

    This applies only if every flag of `argv` is old. A command line that mixes old and current flags ran with the
    current defaults: it keeps them, and the old defaults are listed.
    """
    given, today = _flags(line), {name for new in RENAMES.values() for name in new} - {_ESTIMATOR}
    before = _flags(argv)
    if before & SINCE_0_10:
        return line
    old = not before & today
    kept = {name: values for name, values in KEPT.items() if name not in given}
    shown = [f"{name} {was} (now {now})" if old else f"{name} {now} (was {was})" for name, (was, now) in kept.items()]
    changed = [
        f"{name} {said}" for name, (said, of) in CHANGED.items() if name not in given and (not of or of in given)
    ]
    if old and shown:
        tell(Told(f"defaults of OpenRLHF 0.8 and 0.9 are kept: {', '.join(shown)}", "Info"))
        line = [word for name, (was, _) in kept.items() for word in (name, was)] + line
    told = changed if old else shown + changed
    if told:
        tell(Told(f"defaults that differ from OpenRLHF 0.8 and 0.9: {', '.join(told)}", "Info"))
    return line


def _flags(words: Sequence[str]) -> Collection[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")}


def _whole(flag: str, text: str) -> int:
    if not text.isdecimal():
        raise ValueError(
            f"{flag} must be a whole number: got {text!r}; use --data.max_len and --rollout.max_new_tokens"
        )
    return int(text)


def _take(rest: deque[str], most: int) -> list[str]:
    """Pop up to `most` values off the front; a value never starts with `--` (it may be a negative number)."""
    values: list[str] = []
    while rest and len(values) < most and not rest[0].startswith("--"):
        values.append(rest.popleft())
    return values


def moved(argv: Sequence[str], tell: Tell = to_stderr) -> list[str]:
    """Return `argv` with the old path of every moved file replaced by its new path, and list these files.

    A path is replaced if it ends in the old path and no such file exists. An older copy of the package may still have
    the file.
    """
    line, places = [], {}
    for token in argv:
        flag, equals, value = token.partition("=") if token.startswith("--") else ("", "", token)
        new = _new_place(value)
        if new != value:
            places[value] = new
        line.append(flag + equals + new)
    if places:
        told = ", ".join(f"{old} -> {new}" for old, new in places.items())
        tell(Told(f"files of openrlhf_shear have moved: {told}", "Info"))
    return line


def _new_place(path: str) -> str:
    for old, new in MOVED.items():
        named = path.rstrip("/")
        if (named == old or named.endswith(f"/{old}")) and not os.path.exists(path):
            return named.removesuffix(old) + new
    return path
