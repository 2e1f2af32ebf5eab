"""Run an integration's tests with other versions of its trainer, and print which pass.

    .venv-trl/bin/python scripts/try_versions.py trl 1.12.0 1.13.0 1.14.2 1.15.0 1.16.0
    .venv-verl/bin/python scripts/try_versions.py verl 0.8.0 0.9.0 0.9.1

Each version is installed alone into a temporary folder, in front of the environment that runs the script
(`scripts/setup_integration.sh`). `--output` also writes the table as JSON. Exit code 1: a version fails.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def tried(package: str, version: str, words: list[str]) -> dict[str, object]:
    """Return the result of a version: whether its tests pass, pytest's last line, and the failed tests."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder]
        subprocess.run([*pip, "--no-deps", f"{package}=={version}"], check=True)
        subprocess.run([*pip, "requests"], check=True)  # earlier versions import it
        paths = [folder, str(ROOT), os.environ.get("PYTHONPATH", "")]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OPENRLHF_SHEAR_ANY_VERSION": "1"}
        known = ["-k", "not what_the_integration_knows"]  # of the newest version alone; -k among `words` replaces it
        line = [sys.executable, "-m", "pytest", "-q", *known, f"tests/{package}", "tests/ways", *words]
        done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    last = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1]
    return {"version": version, "passed": done.returncode == 0, "last_line": last, "failed": failed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", choices=("trl", "verl"))
    parser.add_argument("versions", nargs="+")
    parser.add_argument("--output", type=Path, help="JSON file")
    args, words = parser.parse_known_args()
    rows = []
    for version in args.versions:
        rows.append(tried(args.package, version, words))
        print(f"{args.package} {version}: {rows[-1]['last_line']}", *rows[-1]["failed"], sep="\n  ", flush=True)
    if args.output:
        args.output.write_text(json.dumps({"package": args.package, "date": str(date.today()), "rows": rows}, indent=1))
    sys.exit(not all(row["passed"] for row in rows))


if __name__ == "__main__":
    main()
