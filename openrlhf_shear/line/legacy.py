"""Translation of old command lines: flags of OpenRLHF 0.8 to 0.11.1 into those of 0.11.2.

A translated flag takes the place of the old flag, since the last flag on the command line wins. The sum of two lengths
has no such place: it goes to the front, where every other flag overrides it. The names are in legacy.toml;
docs/migration.md has them as a table. Defaults are today's.
"""

import tomllib
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from openrlhf_shear.config.refusal import Note

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
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
_CORRECTION = "--algo.advantage.is_correction_"


def translate(argv: Sequence[str]) -> tuple[list[str], list[Note]]:
    """Return `argv` with older spellings replaced, and notes on what was replaced and what was ignored.

    Raises:
        ValueError: the type of an importance-sampling correction is unknown, or a length is not a whole number.
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
    notes = []
    if renamed:
        spellings = ", ".join(f"{old} -> {new}" for old, new in renamed.items())
        notes.append(Note(f"older spellings of OpenRLHF were used; in 0.11 they are: {spellings}", "Info"))
    notes += [Note(f"{flag} no longer exists in OpenRLHF 0.11; ignored") for flag in ignored]
    return line, notes


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
