#!/usr/bin/env bash
# Install the packages of the CPU profile into a virtual environment: torch's CPU build, then requirements-cpu.lock.
#
#   scripts/install_cpu.sh FOLDER     (TORCH_ONLY=1: only torch and its dependencies)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?the folder of a virtual environment}
torch=torch==2.13.0+cpu
torch_index=https://download.pytorch.org/whl/cpu

pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

deps=--no-deps
[ -z "${TORCH_ONLY:-}" ] || deps=
echo "install_cpu.sh: 1/2 PyTorch, CPU build"
# First from pip's configured index, then from PyTorch's index of CPU builds.
# shellcheck disable=SC2086
pip install --quiet $deps $torch 2>/dev/null || pip install --quiet $deps --index-url "$torch_index" $torch
[ -z "${TORCH_ONLY:-}" ] || exit 0

echo "install_cpu.sh: 2/2 requirements-cpu.lock (some 220 packages; this is the long one)"
# --no-deps: the lock is complete, and the packages that it omits on purpose would bring CUDA.
pip install --quiet --no-deps --progress-bar off -r requirements-cpu.lock

"$venv/bin/python" - <<'PY'
import torch
assert torch.version.cuda is None, f"torch {torch.__version__} is a CUDA build; remove the environment and try again"
PY
