#!/usr/bin/env bash
# Install the cluster profile into a virtual environment: requirements.lock, flash-attn, and this package.
#
#   scripts/install_cluster.sh [FOLDER]     (default .venv; make it with python3 -m venv FOLDER)
#   DEPENDENCIES_ONLY=1                     everything except this package
#
# flash-attn has no wheel for this torch, so nvcc compiles it (docs/install.md):
#   FLASH_ATTN_CUDA_ARCHS="90"  target GPUs: 80 (A100), 90 (H100, H200), 100 (B200), 120; default all four, "80;90;100;120"
#   MAX_JOBS=8                  parallel compilers, each up to 9 GB; default half of the cores, or fewer if memory is short
#   CUDA_HOME=/usr/local/cuda   folder with bin/nvcc, if nvcc is not on the PATH
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}

refuse() {
    echo "install_cluster.sh: error: $*" >&2
    exit 1
}
cuda=$(sed -n 's/^cuda-toolkit==\([0-9]*\.[0-9]*\).*/\1/p' requirements.lock)
nvcc=${CUDA_HOME:+$CUDA_HOME/bin/}nvcc
found=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p' || true)
[ "${found%%.*}" = "${cuda%%.*}" ] ||
    refuse "flash-attn is compiled with nvcc ${cuda%%.*}, as torch is: got ${found:-none} ($nvcc); install CUDA toolkit $cuda, or set CUDA_HOME"
"$venv/bin/python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' ||
    refuse "no Python 3.11 or 3.12 in $venv; make one: python3.12 -m venv $venv"

pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

echo "install_cluster.sh: 1/3 requirements.lock"
# --no-deps: the lock is complete except for flash-attn, whose build needs the torch that is installed here.
pip install --no-deps --progress-bar off -r requirements.lock
"$venv/bin/python" -c 'import sys, torch; sys.exit(torch.version.cuda is None)' ||
    refuse "pip found torch's CPU build: remove it from pip's find-links or extra index"
echo "install_cluster.sh: 2/3 flash-attn, compiled"
# Avoids the wheel that its setup.py guesses (for CUDA 13 it takes a CUDA 12 wheel), and pip's cached wheels.
FLASH_ATTENTION_FORCE_BUILD=TRUE pip install --no-deps --no-build-isolation --no-cache-dir "$(grep ^flash-attn== requirements.txt)"
[ -z "${DEPENDENCIES_ONLY:-}" ] || exit 0
echo "install_cluster.sh: 3/3 openrlhf_shear"
pip install --no-deps --no-build-isolation .
"$venv/bin/python" -m openrlhf_shear.cli.doctor
