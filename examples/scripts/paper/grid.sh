#!/usr/bin/env bash
# Print the paper's experiments: a line of run.sh arguments for each run, as input for any job scheduler:
#
#   examples/scripts/paper/grid.sh main | xargs -L1 sbatch examples/scripts/slurm.sbatch examples/scripts/paper/run.sh
#
#   main       tables 1 and 2: five methods on maths, two on code           groups     GRPO and SHEAR with G = 16
#   distance, normalize, pool, span, tail, epsilon      SHEAR's ablations, on Qwen2.5-Math-7B
#
# `main` has the runs with the default values (the paper's); a sweep lists only the other values. Default: SEEDS="0 1 2".
set -euo pipefail

SEEDS=${SEEDS:-0 1 2}
runs() { # a line for each seed
    local seed
    for seed in $SEEDS; do echo "$* --seed $seed"; done
}
sweep() { # KNOB VALUE ...
    local knob=$1 value
    for value in "${@:2}"; do runs "shear qwen2.5-math-7b math --shear.$knob $value"; done
}

case ${1-} in
    main)
        for method in grpo shear entropy_adv prm_reshape pure; do
            for model in qwen2.5-math-7b llama3.1-8b qwen2.5-14b; do runs "$method $model math"; done
        done
        for method in grpo shear; do
            for model in qwen2.5-coder-7b llama3.1-8b qwen2.5-14b; do runs "$method $model code"; done
        done
        ;;
    groups) for method in grpo shear; do runs "$method qwen2.5-math-7b math --group 16"; done ;;
    distance) sweep distance cosine chamfer mmd wasserstein ;;
    normalize) sweep normalize per_rollout none ;;
    pool) sweep pool mean ;;
    span)
        for window in 80 100 120; do
            for stride in 25 50 75; do
                [ "$window $stride" = "100 25" ] || sweep window "$window --shear.stride $stride"
            done
        done
        ;;
    tail) sweep tail every ;;
    epsilon) sweep epsilon 0.5 1.5 13.5 ;;
    *)
        echo "grid.sh: got '${1-}'; use main, groups, distance, normalize, pool, span, tail or epsilon" >&2
        exit 2
        ;;
esac
