#!/usr/bin/env bash
# Check the GPU path: correctness, tuning, speed and memory. Needs a CUDA GPU and less than ten minutes.
# Makes a separate environment with torch, triton and the packages of the light core; no vllm, ray or deepspeed.
#   scripts/gpu_check.sh [FOLDER] [options of benchmarks/gpu_check.py]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:-.gpu_check}
[ $# -gt 0 ] && shift
if [ ! -x "$folder/bin/python" ]; then
    python3 -m venv "$folder"
    "$folder/bin/pip" install -q "torch>=2.11,<2.14" -e . transformers rich tqdm scipy
fi
exec "$folder/bin/python" benchmarks/gpu_check.py --output "$folder/gpu_check.json" "$@"
