#!/usr/bin/env bash
# Set up the CPU profile in a virtual environment (scripts/install_cpu.sh), this package in it, and what tests and rewards
# need of the system.
#
#   scripts/setup_cpu.sh [FOLDER]     (default .venv; PYTHON=python3.12 chooses the interpreter)
#
# Done once per change of the lock and the scripts; running it again returns at once.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}

stamp="$venv/.openrlhf_shear_installed"
wanted=$(cat requirements-cpu.lock pyproject.toml setup.py scripts/setup_cpu.sh scripts/install_cpu.sh | sha256sum)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi

python=${PYTHON:-}
for candidate in python3 python3.12 python3.11; do
    [ -n "$python" ] && break
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
        python=$candidate
    fi
done
if [ -z "$python" ]; then
    echo "setup_cpu.sh: no Python 3.11 or 3.12 found; install one, or name it: PYTHON=/path/to/python3.12 $0" >&2
    exit 1
fi

say() { echo "setup_cpu.sh: $*"; }
say "installing into $venv with $("$python" --version); the first time takes 3 to 8 minutes"
if ! "$python" -m venv "$venv"; then
    echo "setup_cpu.sh: no virtual environment; on Debian: apt-get install python3-venv" >&2
    exit 1
fi

# The jail of the code and maths rewards. Without it those two refuse to run; everything else works.
if ! command -v bwrap >/dev/null || ! ldconfig -p | grep -q 'libseccomp\.so\.2'; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "bubblewrap and libseccomp2, with apt-get"
        apt-get install -qq --yes bubblewrap libseccomp2 >/dev/null 2>&1 ||
            { apt-get update -qq && apt-get install -qq --yes bubblewrap libseccomp2 >/dev/null; } ||
            say "they did not install; the code and maths rewards will say what is missing"
    else
        say "for the code and maths rewards install bubblewrap and libseccomp2, e.g. apt-get install bubblewrap libseccomp2"
    fi
fi

# The browser that a report's page is tested in. Without it those tests are skipped.
if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "chromium and chromium-driver, with apt-get"
        apt-get install -qq --yes chromium chromium-driver >/dev/null 2>&1 ||
            { apt-get update -qq && apt-get install -qq --yes chromium chromium-driver >/dev/null; } ||
            say "they did not install; the tests of a report's page in a browser will be skipped"
    else
        say "for the browser tests install chromium and chromedriver, e.g. apt-get install chromium chromium-driver"
    fi
fi

scripts/install_cpu.sh "$venv"
say "openrlhf_shear itself"
"$venv/bin/python" -m pip install --quiet --no-deps --no-build-isolation --editable .

echo "$wanted" >"$stamp"
say "done"
