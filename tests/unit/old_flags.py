"""What OpenRLHF 0.8 to 0.11.1 had on its command line that 0.11.2 has not, or has with another default.

    pip download --no-deps --dest WHEELS openrlhf==0.8.0      # and so on, each version
    python tests/unit/old_flags.py WHEELS

writes tests/data/old_flags.json from their parsers, which are run and nothing else of them is.
"""

import argparse
import json
import sys
import zipfile
from pathlib import Path

from command_lines import ROOT
from packaging.version import Version

from openrlhf_shear.train import upstream

FLAGS = ROOT / "tests" / "data" / "old_flags.json"
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


if __name__ == "__main__":
    lines = [f"{json.dumps(flag)}: {json.dumps(row)}" for flag, row in collect(Path(sys.argv[1])).items()]
    FLAGS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
