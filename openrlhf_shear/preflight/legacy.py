"""Command lines of before: the spellings of OpenRLHF 0.8 to 0.11.1 in those of 0.11.2, their defaults, and moved files.

A translated flag stands where the old one stood, as the last one on the line wins; what has no place of its own (a sum
of two lengths, a default of then) stands in front, where any flag of the line overrides it. The names are in
legacy.toml; docs/migration.md has them as a table.
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
_ESTIMATOR = "--algo.advantage.estimator"  # what makes an old command one of the fork's
_SINCE_0_10 = {f"--{name}" for name in _TABLE["defaults"]["since_0_10"]}


Tell = Callable[[Told], None]


def to_stderr(told: Told) -> None:
    print(told, file=sys.stderr)


def translate(argv: Sequence[str], tell: Tell = to_stderr) -> list[str]:
    """Return `argv` with older spellings and moved files replaced.

    Args:
        tell: is given what was replaced, what was ignored, and which defaults are those of then.

    Raises:
        ValueError: the type of an importance-sampling correction is not known, or a length is no whole number.
    """
    line: list[str] = []
    renamed: dict[str, str] = {}
    shared: dict[str, str] = {}
    ignored: dict[str, None] = {}
    lengths: dict[str, int] = {}
    corrects, correction = False, "tis"  # switch and type, in any order; a type without the switch is off
    rest = deque(argv)
    while rest:
        token = rest.popleft()
        flag, equals, value = token.partition("=")
        if flag in RENAMES:
            renamed[flag] = " ".join(RENAMES[flag])
            # The values of one flag follow on the line and need no change.
            values = _take(rest, len(rest)) if len(RENAMES[flag]) > 1 else []
            line += [word for name in RENAMES[flag] for word in (name + equals + value, *values)]
        elif flag in OF_EVERY_RULE:
            shared[flag] = OF_EVERY_RULE[flag]
            line.append(OF_EVERY_RULE[flag] + equals + value)
        elif flag in SWITCHES:
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
        tell(Told(f"flags that every credit rule shares have other names now: {spellings}", "Info"))
    for flag in ignored:
        tell(Told(f"{flag} no longer exists in OpenRLHF 0.11; ignored"))
    flat = [flag for old in (*renamed, *ignored) for flag in old.split() if "." not in flag]
    return moved(_old_defaults(argv, line, tell) if flat else line, tell)


def _old_defaults(argv: Sequence[str], line: list[str], tell: Tell) -> list[str]:
    """Return the translated `line` behind the defaults of 0.8 and 0.9 that it does not set, and tell of them.

    Only where `argv` is all of that time: one that has flags of today beside old ones has been run with the defaults of
    today, and is told the others.
    """
    given, today = _flags(line), {name for new in RENAMES.values() for name in new} - {_ESTIMATOR}
    before = _flags(argv)
    if before & _SINCE_0_10:
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
        tell(Told(f"defaults that are not those of OpenRLHF 0.8 and 0.9: {', '.join(told)}", "Info"))
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
    """Up to `most` values off the front of the line; a value never starts with `--` (it may be a negative number)."""
    values: list[str] = []
    while rest and len(values) < most and not rest[0].startswith("--"):
        values.append(rest.popleft())
    return values


def moved(argv: Sequence[str], tell: Tell = to_stderr) -> list[str]:
    """Return `argv` with the new place of every file that it names by an old place, and tell which.

    A path counts that ends in the old one and is not there: the file may still be in an older copy of the package.
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
