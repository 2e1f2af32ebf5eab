#!/usr/bin/env bash
# The tables and figures of docs/credit-lab.md: what SHEAR's weights and some rules of our own are worth, beside blame by
# the known error, on chain arithmetic. 325 runs of 100 seconds of a core, so nine hours; interrupt it and start it again
# as you like.
#
#   examples/scripts/credit_lab.sh     ARMS="all fresh" (all: below) SEEDS=10 STEPS=60 OUT=runs/lab to change it
set -euo pipefail
cd "$(dirname "$0")/../.."

ARMS=${ARMS:-all fresh weak controls rate}
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

AGAIN=(uniform shear error_odds error_odds/matched)
# What an audit of the first runs asked for: surprising tokens that are not the error, the oracle's own control, error_odds in a
# random order; and whether another learning rate is better for GRPO.
ASKED=(uniform shear shear/permuted oracle_first_wrong oracle_first_wrong/hits=0 oracle_first_wrong/matched error_odds/shuffled)

for arm in $ARMS; do
    case $arm in
    all) lab all "$(join "${PAPER[@]}" "${TRUTH[@]}" "${CONTROLS[@]}" "${OURS[@]}")" ;;
    fresh) lab fresh "$(join "${AGAIN[@]}")" --first-seed 100 ;;                 # on seeds that nothing was chosen on
    weak) lab weak "$(join "${AGAIN[@]}")" --operations 5 --start 0.2 ;;         # a weaker policy on shorter chains
    controls) lab controls "$(join "${ASKED[@]}")" ;;
    rate) for rate in 5e-5 1e-4 2e-4; do SEEDS=5 lab "rate$rate" uniform --learning-rate $rate; done ;;
    *) echo "no such arms: $arm" >&2 && exit 2 ;;
    esac
done
