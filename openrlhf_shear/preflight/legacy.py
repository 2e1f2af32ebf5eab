"""Command lines of before: OpenRLHF 0.9's spellings, translated into those of 0.11, and files that have moved.

A translated flag stands where the old one stood, as the last one on the line wins. The names are in legacy.toml.
"""

import os
import sys
import tomllib
from collections import deque
from collections.abc import Sequence
from pathlib import Path

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RENAMES: dict[str, tuple[str, ...]] = {
    f"--{old}": tuple(f"--{name}" for name in ([new] if isinstance(new, str) else new))
    for old, new in _TABLE["renames"].items()
}
IGNORED: dict[str, int] = {f"--{old}": values for old, values in _TABLE["ignored"].items()}
CORRECTION_SWITCH = "--enable_vllm_is_correction"
CORRECTION_TYPE = "--vllm_is_correction_type"
_CORRECTION = "--algo.advantage.is_correction_"
CORRECTIONS: dict[str, list[str]] = _TABLE["corrections"]
MOVED: dict[str, str] = _TABLE["moved"]


def translate(argv: Sequence[str]) -> list[str]:
    """`argv` with 0.9 spellings and moved files replaced; tells on stderr which ones, and what was ignored.

    Raises:
        ValueError: `--vllm_is_correction_type` names an unknown type.
    """
    line: list[str] = []
    renamed: dict[str, str] = {}
    ignored: dict[str, None] = {}
    corrects, correction = False, "tis"  # 0.9's switch and type, in any order; a type without the switch is off
    rest = deque(argv)
    while rest:
        token = rest.popleft()
        flag, equals, value = token.partition("=")
        if flag in RENAMES:
            renamed[flag] = " ".join(RENAMES[flag])
            # The values of one flag follow on the line and need no change.
            values = _take(rest, len(rest)) if len(RENAMES[flag]) > 1 else []
            line += [word for name in RENAMES[flag] for word in (name + equals + value, *values)]
        elif flag in IGNORED:
            ignored[flag] = None
            if not equals:
                _take(rest, IGNORED[flag])
        elif flag in (CORRECTION_SWITCH, CORRECTION_TYPE):
            if flag == CORRECTION_TYPE:
                correction = value if equals else "".join(_take(rest, 1))
            corrects |= flag == CORRECTION_SWITCH
            if correction not in CORRECTIONS:
                known = f"use one of {', '.join(CORRECTIONS)}, or {_CORRECTION}level and {_CORRECTION}mode"
                raise ValueError(f"{CORRECTION_TYPE} is not known: got {correction!r}; {known}")
            level, mode = CORRECTIONS[correction]
            flags = [f"{_CORRECTION}level", level, f"{_CORRECTION}mode", mode] if corrects else []
            renamed[flag] = " ".join(flags) or "(off)"
            line += flags
        else:
            line.append(token)
    if renamed:
        spellings = ", ".join(f"{old} -> {new}" for old, new in renamed.items())
        print(f"[Info] OpenRLHF 0.9 spellings were used; in 0.11 they are: {spellings}", file=sys.stderr)
    for flag in ignored:
        print(f"[Warning] {flag} no longer exists in OpenRLHF 0.11; ignored", file=sys.stderr)
    return moved(line)


def _take(rest: deque[str], most: int) -> list[str]:
    """Up to `most` values off the front of the line; a value never starts with `--` (it may be a negative number)."""
    values: list[str] = []
    while rest and len(values) < most and not rest[0].startswith("--"):
        values.append(rest.popleft())
    return values


def moved(argv: Sequence[str]) -> list[str]:
    """`argv` with the new place of every file that it names by an old one; tells on stderr which ones.

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
        print(f"[Info] files of openrlhf_shear have moved: {told}", file=sys.stderr)
    return line


def _new_place(path: str) -> str:
    for old, new in MOVED.items():
        named = path.rstrip("/")
        if (named == old or named.endswith(f"/{old}")) and not os.path.exists(path):
            return named.removesuffix(old) + new
    return path
