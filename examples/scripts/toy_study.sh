#!/usr/bin/env bash
# A small study from beginning to end, on the CPU: METHODS x SEEDS on the built-in arithmetic task, evaluation every 5
# steps on held-out problems, the best checkpoint of each run, tables, figures and one page. A quarter of an hour or
# two on two cores with the defaults; a run that is finished is not run again.
#
#   examples/scripts/toy_study.sh      METHODS="group_norm shear" SEEDS="0 1 2" STEPS=20 PROBLEMS=128 OUT=runs/toy_study
#
# What it shows is how a study is made. A 0.6M-parameter policy and 20 steps settle nothing between methods.
set -euo pipefail
cd "$(dirname "$0")/../.."

METHODS=${METHODS:-group_norm shear} SEEDS=${SEEDS:-0 1 2}
STEPS=${STEPS:-20} PROBLEMS=${PROBLEMS:-128} OUT=${OUT:-runs/toy_study}

# One policy to start from and one set of held-out problems for every run, so that runs can be compared.
python -m openrlhf_shear.cli.make_arithmetic --out "$OUT/data" --train 0 --heldout "$PROBLEMS" --seed 0 >/dev/null
RUNS=()
for method in $METHODS; do
    for seed in $SEEDS; do
        RUN=$OUT/$method-seed$seed
        RUNS+=("$RUN")
        [ -f "$RUN/summary.json" ] || RUN=$RUN SEED=$seed STEPS=$STEPS ESTIMATOR=$method \
            examples/scripts/train_shear_arithmetic.sh --eval.steps 5 --eval.suite "$OUT/data/heldout.jsonl" \
            --eval.k 2 --ckpt.best_metric_key suite/average --actor.model_name_or_path "$OUT/data/policy"
    done
done
python -m openrlhf_shear.cli.report "${RUNS[@]}" --output "$OUT/report"
