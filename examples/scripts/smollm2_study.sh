#!/usr/bin/env bash
# GRPO, SHEAR, the judged rule and its matched control with a real pretrained model: SmolLM2-135M-Instruct on one-step word
# problems. Interrupt and restart it at any time: finished runs are not repeated, and docs/credit-questions.md has the plan.
#
#   examples/scripts/smollm2_study.sh      SEEDS="0 1 ... 11" METHODS="..." STEPS=40 LR=1e-5 OUT=runs/smollm2-study
#   GATE=1 examples/scripts/smollm2_study.sh      two steps of seed 900, which judges nothing
set -euo pipefail
cd "$(dirname "$0")/../.."

BEST=surprisal=4/entropy=0/reach=32/epsilon_rel=0.015
METHODS=${METHODS:-group_norm shear error_odds/$BEST examples.rules.matched_odds:MatchedOddsRule/$BEST}
SEEDS=${SEEDS:-0 1 2 3 4 5 6 7 8 9 10 11} STEPS=${STEPS:-40} LR=${LR:-1e-5} OUT=${OUT:-runs/smollm2-study} PROMPTS=8
if [ -n "${GATE:-}" ]; then METHODS=shear SEEDS=900 STEPS=2 OUT=$OUT/gate; fi

RUNS=()
for seed in $SEEDS; do
    python -m openrlhf_shear.cli.make_smollm2 --out "$OUT/data" --easy --seed "$seed" --problems $((STEPS * PROMPTS))
    for method in $METHODS; do
        RUN=$OUT/$(tr -c '[:alnum:]\n' _ <<<"$method")-seed$seed
        RUNS+=("$RUN")
        [ -f "$RUN/report/index.html" ] || RUN=$RUN SEED=$seed STEPS=$STEPS PROMPTS=$PROMPTS ESTIMATOR=$method \
            LR=$LR TEMPERATURE=0.5 DATA=$OUT/data GSM8K=$OUT/data/train.jsonl examples/scripts/train_shear_smollm2.sh \
            --actor.lr_scheduler constant
    done
done
python -m openrlhf_shear.cli.report "${RUNS[@]}" --output "$OUT/report"
