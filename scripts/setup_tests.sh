#!/usr/bin/env bash
# Install what the tests need besides scripts/setup_cpu.sh: a browser, and a second Triton next to torch's Triton.
#   scripts/setup_tests.sh [VENV]
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
. scripts/need.sh

{ command -v chromium && command -v chromedriver; } >/dev/null ||
    need "the tests of pages in a browser are skipped" chromium chromium-driver
[ -d "$venv/second_triton" ] || {
    "$venv/bin/pip" install --quiet --no-deps --target "$venv/second_triton.part" triton==3.9.0
    mv "$venv/second_triton.part" "$venv/second_triton"
}
