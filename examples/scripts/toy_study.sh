#!/usr/bin/env bash
# A small but complete study on the CPU: METHODS x SEEDS on the built-in arithmetic task, evaluation every 5 steps on
# held-out problems, the best checkpoint of each run, tables, figures and a page. With the defaults it takes 15 to 30
# minutes on two cores; finished runs are not repeated.
#
#   examples/scripts/toy_study.sh      METHODS="group_norm shear" SEEDS="0 1 2" STEPS=20 PROBLEMS=128 OUT=runs/toy_study
#
# It shows how to run a study. A 0.6M-parameter policy and 20 steps settle nothing between methods.
set -euo pipefail
cd "$(dirname "$0")/../.."

METHODS=${METHODS:-group_norm shear} SEEDS=${SEEDS:-0 1 2}
STEPS=${STEPS:-20} PROBLEMS=${PROBLEMS:-128} OUT=${OUT:-runs/toy_study}

# All runs share the start policy and the held-out problems, so that they can be compared.
python -m openrlhf_shear.cli.make_arithmetic --out "$OUT/data" --train 0 --heldout "$PROBLEMS" --seed 0 >/dev/null
RUNS=()
for method in $METHODS; do
    for seed in $SEEDS; do
        RUN=$OUT/$method-seed$seed
        RUNS+=("$RUN")
        [ -f "$RUN/report/index.html" ] || RUN=$RUN SEED=$seed STEPS=$STEPS ESTIMATOR=$method \
            examples/scripts/train_shear_arithmetic.sh --eval.steps 5 --eval.suite "$OUT/data/heldout.jsonl" \
            --eval.k 2 --ckpt.best_metric_key suite/average --actor.model_name_or_path "$OUT/data/policy"
    done
done
python -m openrlhf_shear.cli.report "${RUNS[@]}" --output "$OUT/report"
