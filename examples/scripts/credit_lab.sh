#!/usr/bin/env bash
# The tables and figures of docs/credit-lab.md: what SHEAR's weights and some rules of our own are worth, beside blame by
# the known error, on the built-in task. About two minutes a run and core, 310 runs; interrupt it and start it again as you like.
#
#   examples/scripts/credit_lab.sh        SEEDS=10 STEPS=60 OUT=runs/lab to change it
set -euo pipefail
cd "$(dirname "$0")/../.."

SEEDS=${SEEDS:-10} STEPS=${STEPS:-60} OUT=${OUT:-runs/lab}
EXCESS=examples.rules.excess_rule:ExcessRule ONSET=examples.rules.onset_rule:OnsetRule

lab() { # FOLDER RULES [flags]
    local folder=$1 rules=$2
    shift 2
    python -m openrlhf_shear.cli.lab --rules "$rules" --steps "$STEPS" --seeds "$SEEDS" --output "$OUT/$folder" --eval-samples 1 "$@"
}

join() { # words, by commas
    local IFS=,
    echo "$*"
}

PAPER=(uniform shear shear/window=4/stride=1 shear/normalize=per_rollout shear/distance=chamfer shear/distance=cosine entropy_adv)
TRUTH=(oracle_from_error oracle_first_wrong)
CONTROLS=(shear/matched shear/shuffled error_odds/matched)
OURS=("$EXCESS" "$ONSET" error_odds error_odds/rise=0)

lab all "$(join "${PAPER[@]}" "${TRUTH[@]}" "${CONTROLS[@]}" "${OURS[@]}")"

# The best of them again: on seeds that nothing was chosen on, and with a weaker policy on shorter chains.
AGAIN=$(join uniform shear error_odds error_odds/matched)
lab fresh "$AGAIN" --first-seed 100
lab weak "$AGAIN" --operations 5 --start 0.2

# What an audit of the first runs asked for: surprising tokens that are not the error, the oracle's own control, error_odds in a
# random order; and whether another learning rate is better for GRPO.
lab controls "$(join uniform shear/permuted oracle_first_wrong oracle_first_wrong/hits=0 oracle_first_wrong/matched error_odds/shuffled)"
for rate in 5e-5 2e-4; do SEEDS=5 lab "rate$rate" uniform --learning-rate $rate; done
