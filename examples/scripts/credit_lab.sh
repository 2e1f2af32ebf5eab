#!/usr/bin/env bash
# The tables and figures of docs/credit-lab.md: what SHEAR's weights and some rules of our own are worth, beside perfect
# credit, on the built-in task. About two minutes a run and core; interrupt it and start it again as you like.
#
#   examples/scripts/credit_lab.sh        SEEDS=10 STEPS=60 OUT=runs/lab to change it
set -euo pipefail
cd "$(dirname "$0")/../.."

SEEDS=${SEEDS:-10} STEPS=${STEPS:-60} OUT=${OUT:-runs/lab}
EXCESS=examples.rules.excess_rule:ExcessRule POSTERIOR=examples.rules.posterior_rule:PosteriorRule
ONSET=examples.rules.onset_rule:OnsetRule RELATIVE=examples.rules.relative_rule:RelativeRule
SMALL=shear/window=4/stride=1

lab() { # FOLDER RULES [flags]
    local folder=$1 rules=$2
    shift 2
    python -m openrlhf_shear.cli.lab --rules "$rules" --steps "$STEPS" --seeds "$SEEDS" --output "$OUT/$folder" "$@"
}

# The paper's rule and its ablations, perfect credit, controls, and rules of our own.
lab all "uniform,shear,$SMALL,shear/normalize=per_rollout,shear/distance=chamfer,shear/distance=cosine,entropy_adv,oracle_from_error,oracle_first_wrong,shear/matched,shear/shuffled,oracle_first_wrong/matched,$EXCESS,$POSTERIOR,$ONSET,$RELATIVE,$POSTERIOR/matched,$ONSET/matched"
