#!/usr/bin/env bash
# The gates of docs/bookkeeping.md: runs of the oracles on seeds that no comparison uses, then benchmarks/ledger_gates.py.
# You can interrupt and restart it. A run takes about four minutes on a core; there are 5 x 5 runs.
#
#   examples/scripts/ledger_gates.sh       SEEDS=5 STEPS=40 OUT=runs/ledger/gates WORKERS=1 to change it
set -euo pipefail
cd "$(dirname "$0")/../.."

SEEDS=${SEEDS:-5} STEPS=${STEPS:-40} OUT=${OUT:-runs/ledger/gates} WORKERS=${WORKERS:-1}
export PYTHONPATH=.${PYTHONPATH:+:$PYTHONPATH}
python benchmarks/run_tables.py unpack bookkeeping_gates_runs "$OUT"
RULES=uniform,oracle_first_wrong,oracle_first_wrong/hits=0.4,oracle_first_wrong/matched,oracle_from_error
python -m openrlhf_shear.cli.lab --task bookkeeping --rules "$RULES" --prompts 8 --steps "$STEPS" --eval-problems 64 --window 32 --stride 8 --epsilon-rel 0.015 --placement-prompts 16 \
    --first-seed 900 --seeds "$SEEDS" --workers "$WORKERS" --output "$OUT"
python benchmarks/run_tables.py pack bookkeeping_gates_runs "$OUT"
python benchmarks/ledger_gates.py --runs "$OUT" --steps "$STEPS" --first 20 --output benchmarks/results/ledger_gates.json
