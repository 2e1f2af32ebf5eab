#!/usr/bin/env bash
# Install what the tests need besides scripts/setup_cpu.sh: a browser, a second Triton next to torch's Triton, and
# torchvision for vision models on the CPU, in folders of their own: transformers imports torchvision wherever it is.
#   scripts/setup_tests.sh [VENV]
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
. scripts/need.sh

{ command -v chromium && command -v chromedriver; } >/dev/null ||
    need "the tests of pages in a browser are skipped" chromium chromium-driver
beside() { # FOLDER PACKAGE
    [ -d "$venv/$1" ] || {
        "$venv/bin/pip" install --quiet --no-deps --target "$venv/$1.part" "$2"
        mv "$venv/$1.part" "$venv/$1"
    }
}
beside second_triton triton==3.9.0
beside torchvision torchvision==0.28.0 # for CUDA; the version that goes with torch 2.13
# Every Python process with this folder in PYTHONPATH runs it: openrlhf_shear/train/cpu/torchvision_names.py.
cat >"$venv/torchvision/sitecustomize.py" <<'PY'
from openrlhf_shear.train.cpu.torchvision_names import install

install()
PY
