"""What OpenRLHF 0.8 to 0.11.1 had on its command line that 0.11.2 has not, or has with another default.

    pip download --no-deps --dest WHEELS openrlhf==0.8.0      # and so on, each version
    python tests/unit/old_flags.py WHEELS

writes tests/data/old_flags.json from their parsers, which are run and nothing else of them is, and the table of
docs/migration.md; without WHEELS the table alone.
"""

import argparse
import json
import sys
import zipfile
from pathlib import Path

from command_lines import ROOT
from packaging.version import Version

from openrlhf_shear.line import legacy
from openrlhf_shear.train import upstream

FLAGS, PAGE = ROOT / "tests" / "data" / "old_flags.json", ROOT / "docs" / "migration.md"
MARK = "<!-- by tests/unit/old_flags.py -->\n"
_OF_TODAY = {"--logger.wandb.run_name", "--wandb_run_name"}  # by default the time of day


def flags_of(parser: argparse.ArgumentParser) -> dict[str, dict]:
    def plain(value):
        return str(value) if value == float("inf") else list(value) if isinstance(value, tuple) else value

    return {
        flag: {
            "default": None if flag in _OF_TODAY else plain(action.default),
            "nargs": action.nargs,
            "type": getattr(action.type, "__name__", None),
            "choices": action.choices,
        }
        for action in parser._actions
        for flag in action.option_strings
        if action.dest != "help"
    }


def collect(wheels: Path) -> dict[str, dict]:
    """By flag: the first and last version that has it, its default from a version on, and how it is written."""
    versions, now = {}, flags_of(upstream.parser())
    for wheel in wheels.glob("openrlhf-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith("openrlhf/cli/train_ppo_ray.py"))
            versions[wheel.name.split("-")[1]] = flags_of(upstream.parser(archive.read(name).decode()))
    rows: dict[str, dict] = {}
    for version in sorted(versions, key=Version):
        for flag, how in versions[version].items():
            if flag in now and now[flag]["default"] == how["default"]:
                continue
            row = rows.setdefault(flag, {"first": version, "defaults": {}})
            if list(row["defaults"].values())[-1:] != [how["default"]]:
                row["defaults"][version] = how["default"]
            row |= {"last": version} | {name: how[name] for name in ("nargs", "type", "choices")}
    return dict(sorted(rows.items()))


def read() -> dict[str, dict]:
    return json.loads(FLAGS.read_text(encoding="utf-8"))


def became(flag: str) -> str:
    if flag in legacy.RENAMES:
        return " and ".join(f"`{name}`" for name in legacy.RENAMES[flag])
    if flag in legacy.SWITCHES:
        return f"`{' '.join(legacy.SWITCHES[flag])}`"
    if flag in legacy.LENGTHS:
        sums = "`--data.max_len`: the sum of " + " and ".join(f"`{name}`" for name in legacy.LENGTHS)
        return f"{sums}; `--rollout.max_new_tokens`" if flag == list(legacy.LENGTHS)[1] else sums
    if flag in legacy.IGNORED:
        return "gone; ignored"
    prefix, (level, mode) = "--algo.advantage.is_correction_", legacy.CORRECTIONS["icepop"]
    if flag in legacy.CORRECTION_SWITCHES:
        return f"`{prefix}level` and `{prefix}mode`, by the type (`tis`)"
    if flag in legacy.CORRECTION_ICEPOP:
        return f"`{prefix}level {level}` and `{prefix}mode {mode}`"
    kinds = "; ".join(f"`{name}`: `{' '.join(pair)}`" for name, pair in legacy.CORRECTIONS.items())
    return f"`{prefix}level` and `{prefix}mode`: {kinds}"


def table() -> str:
    """Two tables: of flags that got a section or a dot and nothing else, and of the others."""
    now, rows, behind = flags_of(upstream.parser()), [], {}
    for flag, row in read().items():
        values = {version: shown(default) for version, default in row["defaults"].items()}
        new = {shown(now[name]["default"]) for name in legacy.RENAMES.get(flag, ()) if name in now} or {""}
        differs = len(values) > 1 or set(values.values()) != new
        told = ", ".join(f"{value} ({version})" for version, value in values.items()) if differs and new != {""} else ""
        names = legacy.RENAMES.get(flag, ())
        if not told and len(names) == 1 and names[0].endswith(f".{flag[2:]}"):
            behind.setdefault(f"`{names[0].removesuffix(flag[2:])}` in front", []).append(f"`{flag}`")
            continue
        if not told and names == (flag.replace("_", ".", 1),):
            behind.setdefault("a dot for the first `_`", []).append(f"`{flag}`")
            continue
        told = f". Default: {told}; now {new.pop()}" if told else ""
        rows.append(f"| `{flag}` | {became(flag)}{told} |")
    sections = [f"| {change} | {', '.join(flags)} |" for change, flags in sorted(behind.items())]
    heads = ("| change | of |\n| --- | --- |", "\n| flag | is now |\n| --- | --- |")
    return "\n".join([heads[0], *sections, heads[1], *rows]) + "\n"


def page() -> str:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARK)
    return before + MARK + table() + MARK + rest.partition(MARK)[2]


def shown(value: object) -> str:
    if isinstance(value, list):
        return " ".join(f"{number:g}" for number in value)
    return "none" if value is None else f"{float(value):g}" if isinstance(value, int | float) else str(value)


if __name__ == "__main__":
    if sys.argv[1:]:
        lines = [f"{json.dumps(flag)}: {json.dumps(row)}" for flag, row in collect(Path(sys.argv[1])).items()]
        FLAGS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
