#!/usr/bin/env bash
# Set up the CPU profile in a virtual environment (scripts/install_cpu.sh), with this package and the system packages
# that rewards need.
#
#   scripts/setup_cpu.sh [FOLDER]     (default .venv; PYTHON=python3.12 chooses the interpreter)
#
# It installs again only if the lock or the scripts have changed; otherwise it returns at once.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}

stamp="$venv/.openrlhf_shear_installed"
wanted=$(cat requirements-cpu.lock pyproject.toml scripts/{setup_cpu,need,install_cpu}.sh | sha256sum)
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

. scripts/need.sh
say "installing into $venv with $("$python" --version); the first time takes 3 to 8 minutes"
if ! "$python" -m venv "$venv"; then
    echo "setup_cpu.sh: no virtual environment; on Debian: apt-get install python3-venv" >&2
    exit 1
fi

library() { PATH=$PATH:/sbin ldconfig -p | grep "$1" >/dev/null; }

header='import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'
{ command -v g++ >/dev/null && "$python" -c "$header" 2>/dev/null && library 'libnuma\.so\.1'; } ||
    need "vLLM does not start" g++ libnuma1 "$(basename "$python")-dev"
{ command -v bwrap >/dev/null && library 'libseccomp\.so\.2'; } ||
    need "the code and maths rewards refuse to run" bubblewrap libseccomp2

scripts/install_cpu.sh "$venv"
say "openrlhf_shear itself"
"$venv/bin/python" -m pip install --quiet --no-deps --no-build-isolation --editable .
say "the loops of the span search, compiled for this processor"
"$venv/bin/python" -c "from openrlhf_shear.kernels.numba_sinkhorn import compile_loops; compile_loops()"

echo "$wanted" >"$stamp"
say "done"
