#!/usr/bin/env bash
# The whole diagnosis on the built-in task and policy, on the CPU: rollouts, continuations of their prefixes, distances,
# analyses, figures, and the page. The first error of every rollout is known, so it also shows how well omega finds it.
# The same command resumes an interrupted diagnosis.
#
#   examples/scripts/diagnose_arithmetic.sh      PROBLEMS=32 COMPLETIONS=16 OUT=runs/diagnosis_arithmetic
set -euo pipefail
cd "$(dirname "$0")/../.."

PROBLEMS=${PROBLEMS:-32} COMPLETIONS=${COMPLETIONS:-16} OUT=${OUT:-runs/diagnosis_arithmetic}

python -m openrlhf_shear.cli.make_arithmetic --out "$OUT/data" --train 0 --heldout "$PROBLEMS" --seed 0 >/dev/null
python -m openrlhf_shear.cli.diagnose --model "$OUT/data/policy" --dataset "$OUT/data/heldout.jsonl" \
    --task openrlhf_shear/tasks/arithmetic/arithmetic.py --prompt-key prompt --label-key answer --prompt-format plain \
    --samples-per-prompt 8 --completions "$COMPLETIONS" --max-new-tokens 150 --window 16 --stride 4 \
    --enforce-eager --controls --output "$OUT" "$@"
python -m openrlhf_shear.cli.rollout_page "$OUT/rollouts.parquet" --output "$OUT/rollouts.html"
