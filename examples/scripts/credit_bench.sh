#!/usr/bin/env bash
# The rows of docs/credit-bench.md, and the page itself. You can interrupt and restart it at any time; finished runs are kept
# in runs/credit_bench, and those of docs/bookkeeping.md are in benchmarks/results/ledger/lab.
#
#   examples/scripts/credit_bench.sh     ARMS="kept arithmetic table" (all: below) SEEDS=5 WORKERS=2 CONTINUATIONS=32 (0 samples nothing)
set -euo pipefail
cd "$(dirname "$0")/../.."

ARMS=${ARMS:-kept faster arithmetic table} CONTINUATIONS=${CONTINUATIONS:-32}
SEEDS=${SEEDS:-5} WORKERS=${WORKERS:-1} LEDGER=runs/ledger/lab

bench() {
    python -m openrlhf_shear.cli.credit_bench run --workers "$WORKERS" --continuations "$CONTINUATIONS" "$@"
}

from_ledger() { # no training: rows from the finished runs of the comparison
    mkdir -p "$LEDGER"
    cp -rn benchmarks/results/ledger/lab/. "$LEDGER/"
    bench --tasks bookkeeping --seeds 0 --output "$LEDGER" "$@"
}

CHANGE=examples.rules.change_rule:ChangeRule CONTRAST=examples.rules.contrast_rule:ContrastRule
JUDGED=error_odds/surprisal=4/entropy=0/reach=32/epsilon_rel=0.015
RULES=uniform,shear,shear/matched,shear/shuffled,shear/permuted,shear/on_incorrect,shear/on_incorrect/matched
RULES=$RULES,shear/normalize=per_rollout,shear/tail=every,shear/window=8/stride=2,shear/window=16/stride=4
RULES=$RULES,shear/window=64/stride=16,error_odds,error_odds/rise=0,error_odds/surprisal=4/entropy=0/rise=0,$JUDGED
RULES=$RULES,$CHANGE,$CHANGE/window=1/rise=2,$CONTRAST,$CONTRAST/surprisal=0
RULES=$RULES,examples.rules.discriminant_rule:DiscriminantRule,text
RULES=$RULES,oracle_first_wrong,oracle_first_wrong/hits=0,oracle_first_wrong/matched,oracle_from_error

for arm in $ARMS; do
    case $arm in
    kept) from_ledger --rules "$RULES" ;;
    faster) from_ledger --rules uniform,shear --learning-rate 2e-4 ;;
    arithmetic) bench --tasks arithmetic --seeds "$SEEDS" --rules uniform,shear,error_odds,oracle_first_wrong ;;
    table) python -m openrlhf_shear.cli.credit_bench table ;;
    *) echo "no such arms: $arm" >&2 && exit 2 ;;
    esac
done
