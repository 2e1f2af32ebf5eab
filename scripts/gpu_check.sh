#!/usr/bin/env bash
# Check the GPU path: correctness, launches, speed and memory. Needs a CUDA GPU and less than ten minutes.
# Needs g++ and Python.h, with which Triton builds what starts a kernel; as root, apt-get installs them.
# Makes a separate environment with torch, triton and the packages of the light core; no vllm, ray or deepspeed.
#   scripts/gpu_check.sh [FOLDER] [options of benchmarks/gpu_check.py]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

. scripts/need.sh
header='import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'
builds() { command -v g++ >/dev/null && python3 -c "$header" 2>/dev/null; }
builds || need "Triton starts no kernel" g++ python3-dev
builds || { say "nothing was checked: g++ or Python.h of $(command -v python3 || echo python3) is missing" >&2 && exit 1; }

folder=${1:-.gpu_check}
[ $# -gt 0 ] && shift
if [ ! -x "$folder/bin/python" ]; then
    python3 -m venv "$folder"
    "$folder/bin/pip" install -q "torch>=2.12,<2.14" -e .
fi
exec "$folder/bin/python" benchmarks/gpu_check.py --output "$folder/gpu_check.json" "$@"
