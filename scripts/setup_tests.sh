#!/usr/bin/env bash
# What the tests need besides scripts/setup_cpu.sh: a browser.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/need.sh

{ command -v chromium && command -v chromedriver; } >/dev/null ||
    need "the tests of pages in a browser are skipped" chromium chromium-driver
