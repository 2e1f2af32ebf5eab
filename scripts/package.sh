#!/usr/bin/env bash
# Build the sdist and the wheel, check them with twine, and install the wheel into an empty environment of each Python.
# There the quickstart and a command run, from an empty folder.
#
#   scripts/package.sh [FOLDER]     (default runs/package; PYTHONS="python3.12 /path/to/python3.13" chooses interpreters)
#
# A Python that is not on this machine is named and left out; at least one is needed.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
mkdir -p "${1:-runs/package}"
out=$(cd "${1:-runs/package}" && pwd)
. scripts/need.sh

pip() { "$1/bin/python" -m pip --disable-pip-version-check "${@:2}"; }

[ -x "$out/tools/bin/twine" ] || { python3 -m venv "$out/tools" && pip "$out/tools" install --quiet build twine; }
rm -rf "$out/dist"
"$out/tools/bin/python" -m build --outdir "$out/dist" . >"$out/build.log" 2>&1 || { tail -n 20 "$out/build.log" >&2 && exit 1; }
"$out/tools/bin/twine" check --strict "$out"/dist/*

tried=0
for python in ${PYTHONS:-python3.11 python3.12 python3.13}; do
    if ! version=$("$python" -c 'import platform; print(platform.python_version())' 2>/dev/null); then
        say "$python is not on this machine: not tried"
        continue
    fi
    say "an empty environment of Python $version"
    venv=$out/python-$version
    rm -rf "$venv" "$venv-elsewhere"
    "$python" -m venv "$venv"
    TORCH_ONLY=1 scripts/install_cpu.sh "$venv" >/dev/null 2>&1 || say "no CPU build of torch for $version here: pip chooses"
    pip "$venv" install --quiet "$(ls "$out"/dist/*.whl)"
    pip "$venv" check
    mkdir "$venv-elsewhere" && cd "$venv-elsewhere"
    "$venv/bin/python" -m openrlhf_shear.cli.make_arithmetic --out data --train 2 --heldout 2
    "$venv/bin/python" "$root/examples/quickstart.py" --output quickstart | tail -n 1
    cd "$root"
    tried=$((tried + 1))
    say "Python $version: installed, and it works"
done
[ "$tried" -gt 0 ] || { say "no Python was tried" >&2 && exit 1; }
