#!/usr/bin/env bash
# The data of the paper's runs, into DATA (default: runs/data): TASK.jsonl to train on, TASK_eval.jsonl for the curves.
#
#   examples/scripts/paper/data.sh [math] [code]      (default: both)
#
# An existing TASK_eval.jsonl is kept, and an existing TASK.jsonl ends the script. OVERWRITE=1 makes both anew.
# MATH, MATH500 (a file or folder), EURUS (a folder with both splits): local copies to use instead of the hub's. TOKENIZER
# only counts tokens. LEVELS=3-5 and SPLIT=train+test: MATH's harder problems (docs/recipes.md).
set -euo pipefail
cd "$(dirname "$0")/../../.."

DATA=${DATA:-runs/data}
MATH500=${MATH500:-HuggingFaceH4/MATH-500}
EURUS=${EURUS:-PRIME-RL/Eurus-2-RL-Data}
# 4096 positions minus the 3072 of a response.
LENGTH=(--max-prompt-tokens 1024 --tokenizer "${TOKENIZER:-Qwen/Qwen2.5-7B}")
prepare() { python -m openrlhf_shear.cli.prepare_data "$@" ${OVERWRITE:+--overwrite}; }
there() { [ -f "$1" ] && [ -z "${OVERWRITE-}" ]; }

mkdir -p "$DATA"
[ $# -gt 0 ] || set -- math code
for task in "$@"; do
    case $task in
        math)
            there "$DATA/math_eval.jsonl" || prepare --source math --input "$MATH500" --split test --output "$DATA/math_eval.jsonl" "${LENGTH[@]}"
            prepare --source math ${MATH:+--input "$MATH"} --split "${SPLIT:-train}" ${LEVELS:+--levels "$LEVELS"} --exclude "$DATA/math_eval.jsonl" --check \
                --output "$DATA/math.jsonl" "${LENGTH[@]}"
            ;;
        code)
            there "$DATA/code_eval.jsonl" || prepare --source eurus-code --input "$EURUS" --split validation --limit 256 --seed 0 \
                --output "$DATA/code_eval.jsonl" "${LENGTH[@]}"
            prepare --source eurus-code --input "$EURUS" --exclude "$DATA/code_eval.jsonl" \
                --output "$DATA/code.jsonl" "${LENGTH[@]}"
            ;;
        *) echo "data.sh: TASK is not known: got $task; use math or code" >&2 && exit 2 ;;
    esac
done
