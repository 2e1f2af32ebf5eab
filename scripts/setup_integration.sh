#!/usr/bin/env bash
# Set up a virtual environment for the tests of an integration: its package, torch's CPU build, pytest and this package.
#
#   scripts/setup_integration.sh trl [FOLDER]        (or verl; default folder: .venv-trl)
#
# It installs again only if the requirements have changed; otherwise it returns at once.
set -euo pipefail
cd "$(dirname "$0")/.."
package=${1:?trl or verl}
venv=${2:-.venv-$package}
. scripts/need.sh

stamp="$venv/.openrlhf_shear_installed"
wanted=$(cat requirements/"$package".txt requirements/"$package"-tests.txt pyproject.toml "$0" scripts/install_cpu.sh | sha256sum)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    exit 0
fi

say "installing $package into $venv; the first time takes 2 to 4 minutes"
"${PYTHON:-python3}" -m venv "$venv"
# install_cpu.sh knows torch's version and index.
TORCH_ONLY=1 scripts/install_cpu.sh "$venv"
torch=$("$venv/bin/python" -c 'import torch; print(torch.__version__)')
"$venv/bin/python" -m pip --disable-pip-version-check install --quiet --progress-bar off "torch==$torch" \
    -r requirements/"$package".txt -r requirements/"$package"-tests.txt
"$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps --editable .

echo "$wanted" >"$stamp"
say "done"
