#!/usr/bin/env bash
# Install the cluster profile into a virtual environment: requirements.lock, DeepSpeed with its compiled optimizers,
# flash-attn, and this package.
#
#   scripts/install_cluster.sh [FOLDER]     (default .venv; make it with python3 -m venv FOLDER)
#   DEPENDENCIES_ONLY=1                     everything except this package
#   FLASH_ATTN_WHEEL=FILE                   a wheel of flash-attn for this torch, or its address; else it is compiled
#
# nvcc compiles DeepSpeed's optimizers, and flash-attn, which has no wheel for this torch (docs/install.md):
#   FLASH_ATTN_CUDA_ARCHS="90"  target GPUs: 80 (A100), 90 (H100, H200), 100 (B200), 120; default all four, "80;90;100;120"
#   MAX_JOBS=8                  parallel compilers, each up to 9 GB; default half of the cores, or fewer if memory is short
#   CUDA_HOME=/usr/local/cuda   folder with bin/nvcc, if nvcc is not on the PATH
#
# CPU Adam is compiled for this machine's processor, so run the script on a node of the kind that trains.
set -euo pipefail
[ ! -f "${FLASH_ATTN_WHEEL-}" ] || FLASH_ATTN_WHEEL=$(realpath "$FLASH_ATTN_WHEEL")
cd "$(dirname "$0")/.."
venv=${1:-.venv}

refuse() {
    echo "install_cluster.sh: error: $*" >&2
    exit 1
}
cuda=$(sed -n 's/^cuda-toolkit==\([0-9]*\.[0-9]*\).*/\1/p' requirements.lock)
# torch and DeepSpeed look for nvcc in this order, and take the toolkit of the first place that is set.
nvcc=$(command -v nvcc || true)
home=${CUDA_HOME:-${CUDA_PATH:-${nvcc:+$(dirname "$(dirname "$nvcc")")}}}
home=${home:-/usr/local/cuda}
found=$("$home/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p' || true)
[ "${found%%.*}" = "${cuda%%.*}" ] ||
    refuse "DeepSpeed and flash-attn are compiled with nvcc ${cuda%%.*}, as torch is: got ${found:-none} ($home/bin/nvcc); install CUDA toolkit $cuda, or set CUDA_HOME"
"$venv/bin/python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' ||
    refuse "no Python 3.11 or 3.12 in $venv; make one: python3.12 -m venv $venv"
case ${FLASH_ATTN_WHEEL:-none} in
    none | *://*.whl) ;;
    *.whl) [ -f "$FLASH_ATTN_WHEEL" ] || refuse "FLASH_ATTN_WHEEL names no file: got $FLASH_ATTN_WHEEL" ;;
    *) refuse "FLASH_ATTN_WHEEL must be a wheel (.whl) or its address: got $FLASH_ATTN_WHEEL" ;;
esac

pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

echo "install_cluster.sh: 1/4 requirements.lock"
# --no-deps: the lock is complete except for flash-attn, whose build needs the torch that is installed here.
pip install --no-deps --progress-bar off -r requirements.lock
"$venv/bin/python" -c 'import sys, torch; sys.exit(torch.version.cuda is None)' ||
    refuse "pip found torch's CPU build: remove it from pip's find-links or extra index"
echo "install_cluster.sh: 2/4 DeepSpeed, with FusedAdam and CPU Adam compiled"
# Without this step every node compiles them in its first run.
# - DS_ACCELERATOR: on a machine without a GPU DeepSpeed would build for the CPU.
# - TORCH_CUDA_ARCH_LIST: DeepSpeed's default names GPUs that nvcc 13 no longer knows.
# - DS_SKIP_CUDA_CHECK: torch accepts another minor version of CUDA 13 (with a warning), DeepSpeed refuses it.
archs=$(tr ';' '\n' <<<"${FLASH_ATTN_CUDA_ARCHS:-80;90;100;120}" | sed 's/.$/.&/' | paste -sd ';')
[ "$found" = "$cuda" ] || echo "install_cluster.sh: nvcc is $found and torch's CUDA $cuda: DeepSpeed's check of that is off for this build"
CUDA_HOME=$home DS_BUILD_FUSED_ADAM=1 DS_BUILD_CPU_ADAM=1 DS_ACCELERATOR=cuda DS_SKIP_CUDA_CHECK=1 \
    TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST:-$archs} \
    pip install --no-deps --no-build-isolation --no-cache-dir --force-reinstall "$(sed -n 's/^\(deepspeed==[^ ]*\).*/\1/p' requirements.lock)"
echo "install_cluster.sh: 3/4 flash-attn, ${FLASH_ATTN_WHEEL:-compiled}"
if [ -n "${FLASH_ATTN_WHEEL:-}" ]; then
    pip install --no-deps "$FLASH_ATTN_WHEEL"
    "$venv/bin/python" -c 'import flash_attn' || refuse "FLASH_ATTN_WHEEL is not for this torch: got $FLASH_ATTN_WHEEL"
else
    # Avoids the wheel that its setup.py guesses (for CUDA 13 it takes a CUDA 12 wheel), and pip's cached wheels.
    FLASH_ATTENTION_FORCE_BUILD=TRUE pip install --no-deps --no-build-isolation --no-cache-dir "$(grep ^flash-attn== requirements.txt)"
fi
[ -z "${DEPENDENCIES_ONLY:-}" ] || exit 0
echo "install_cluster.sh: 4/4 openrlhf_shear"
pip install --no-deps --no-build-isolation .
"$venv/bin/python" -m openrlhf_shear.cli.doctor
