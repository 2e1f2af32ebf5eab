#!/usr/bin/env bash
# The rows of docs/credit-bench.md, and the page itself. You can interrupt and restart it at any time; finished runs are rows
# of benchmarks/results/credit_bench_runs.jsonl.xz, and those of docs/bookkeeping.md of bookkeeping_runs.jsonl.xz there.
#
#   examples/scripts/credit_bench.sh     ARMS="kept arithmetic table" WORKERS=2 CONTINUATIONS=32
set -euo pipefail
cd "$(dirname "$0")/../.."

ARMS=${ARMS:-kept faster arithmetic table} CONTINUATIONS=${CONTINUATIONS:-32}
WORKERS=${WORKERS:-1} LEDGER=runs/ledger/lab
export PYTHONPATH=.${PYTHONPATH:+:$PYTHONPATH}

bench() {
    python -m openrlhf_shear.cli.credit_bench run --workers "$WORKERS" --continuations "$CONTINUATIONS" "$@"
}

from_ledger() { # no training: rows from the finished runs of the comparison
    python benchmarks/run_tables.py unpack bookkeeping_runs "$LEDGER"
    bench --tasks bookkeeping --read_only --baseline_rates 1e-4,2e-4 --output "$LEDGER" "$@"
}

question_4() { # SEEDS RULES FLAG...
    local seeds=$1 rules=$2
    shift 2
    python -m openrlhf_shear.cli.lab --task bookkeeping-paraphrased --rules "$rules" --seeds "$seeds" --first-seed 400 --steps 60 \
        --prompts 8 --window 32 --stride 8 --epsilon-rel 0.015 --eval-problems 64 --eval-samples 1 --placement-prompts 32 \
        --workers "$WORKERS" --output runs/question_4 "$@"
}
TUNED=(--learning-rates 1e-4,1.4e-4,2e-4,2.8e-4 --tuning-seeds 4 --first-tuning-seed 930 --widen-rates 1)

CHANGE=examples.rules.change_rule:ChangeRule CONTRAST=examples.rules.contrast_rule:ContrastRule
JUDGED=error_odds/surprisal=4/entropy=0/reach=32/epsilon_rel=0.015
SURPRISAL=error_odds/surprisal=4/entropy=0/rise=0
RULES=uniform,shear,shear/matched,shear/shuffled,shear/permuted,shear/on_incorrect,shear/on_incorrect/matched
RULES=$RULES,shear/normalize=per_rollout,error_odds,error_odds/rise=0,$SURPRISAL,$JUDGED
RULES=$RULES,$CHANGE,$CHANGE/window=1/rise=2,$CONTRAST,$CONTRAST/surprisal=0
RULES=$RULES,examples.rules.discriminant_rule:DiscriminantRule,text
FEW=uniform,shear,error_odds,text,oracle_first_wrong,oracle_from_error
RULES=$RULES,oracle_first_wrong,oracle_first_wrong/hits=0,oracle_first_wrong/matched,oracle_from_error

for arm in $ARMS; do
    case $arm in
    kept) from_ledger --rules "$RULES" --curve_rates 2e-4 ;;
    faster) from_ledger --rules uniform,shear --learning-rate 2e-4 ;;
    arithmetic)
        python benchmarks/run_tables.py unpack credit_bench_runs runs/credit_bench
        trap "python benchmarks/run_tables.py pack credit_bench_runs runs/credit_bench" EXIT
        bench --tasks arithmetic --baseline_rates 5e-5,1e-4,1.4e-4 --rules "$FEW"
        ;;
    question_4) # of docs/credit-questions.md, planned before its runs; 5 to 8 minutes a run on a core
        python benchmarks/run_tables.py unpack question_4_runs runs/question_4
        trap "python benchmarks/run_tables.py pack question_4_runs runs/question_4" EXIT
        question_4 26 uniform,shear,oracle_first_wrong "${TUNED[@]}"
        question_4 1 uniform,oracle_first_wrong/matched "${TUNED[@]}"
        question_4 4 uniform --mini-batches 16 --learning-rate 5e-5 # exploratory: half of each rule's best rate
        question_4 4 shear --mini-batches 16 --learning-rate 7e-5 # and GRPO at this rate
        python benchmarks/run_tables.py pack question_4_runs runs/question_4
        equal_steps() { python benchmarks/equal_steps.py --table question_4_runs --output "benchmarks/results/$1.json" "${@:2}"; }
        equal_steps question_4 --seeds 400-425 --rules shear oracle_first_wrong
        equal_steps question_4_tuning --seeds 930-933
        equal_steps question_4_updates --seeds 400-403 --updates 16 --rate 5e-5
        ;;
    table) python -m openrlhf_shear.cli.credit_bench table ;;
    *) echo "no such arms: $arm" >&2 && exit 2 ;;
    esac
done
