#!/usr/bin/env bash
# The diagnosis of a real pretrained model, SmolLM2-135M-Instruct, on one-step word problems, some of which it solves.
# It takes three quarters of an hour on two cores; the same command resumes an interrupted diagnosis.
#
#   examples/scripts/diagnose_smollm2.sh      PROBLEMS=140 COMPLETIONS=8 ENGINES=2 OUT=runs/diagnosis_smollm2 to change it
set -euo pipefail
cd "$(dirname "$0")/../.."

PROBLEMS=${PROBLEMS:-140} COMPLETIONS=${COMPLETIONS:-8} ENGINES=${ENGINES:-2} OUT=${OUT:-runs/diagnosis_smollm2}

python -m openrlhf_shear.cli.make_smollm2 --out "$OUT/data" --problems "$PROBLEMS" --easy
python -m openrlhf_shear.cli.diagnose --model "$OUT/data/policy" --dataset "$OUT/data/train.jsonl" \
    --task openrlhf_shear/rewards/last_number.py --prompt-key question --label-key answer \
    --samples-per-prompt 8 --completions "$COMPLETIONS" --temperature 0.7 --max-new-tokens 80 --window 16 --stride 8 \
    --engines "$ENGINES" --enforce-eager --controls --output "$OUT" "$@"
python -m openrlhf_shear.cli.rollout_page "$OUT/rollouts.parquet" --output "$OUT/rollouts.html"
