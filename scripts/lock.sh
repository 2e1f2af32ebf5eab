#!/usr/bin/env bash
# Resolve pyproject.toml and the requirement files into requirements.lock (the cluster) and requirements-cpu.lock (the CPU
# profile, with the cluster's versions), for Linux on x86_64. The same versions serve Python 3.11 and 3.12. Locked versions
# stay if possible; `scripts/lock.sh --upgrade` takes the newest. Needs uv (pip install uv).
set -euo pipefail
cd "$(dirname "$0")/.."
upgrade=("$@")

lock() { # OUTPUT FLAG...
    local output=$1 first
    compile 3.11 "${upgrade[@]}" --output-file "$@"
    first=$(pins "$output")
    compile 3.12 --output-file "$@" # keeps the versions in the output file if possible
    if [ "$first" != "$(pins "$output")" ]; then
        echo "lock.sh: Python 3.12 needs other versions than 3.11 in $output: bound them in a requirement file" >&2
        exit 1
    fi
    echo "$output: $(wc -l <<<"$first") packages"
}

compile() { # PYTHON FLAG...
    uv pip compile --quiet --python-platform x86_64-manylinux_2_28 --annotation-style line \
        --custom-compile-command "make lock" pyproject.toml --python-version "$@"
}

pins() { grep -o '^[a-z0-9][^ ]*' "$1"; }

# flash-attn is compiled on its target machine: scripts/install_cluster.sh
lock requirements.lock requirements.txt --no-emit-package flash-attn
lock requirements-cpu.lock requirements-cpu.txt --excludes requirements-cpu.excluded.txt --constraints requirements.lock
