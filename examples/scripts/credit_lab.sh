#!/usr/bin/env bash
# Make the tables and figures of docs/credit-lab.md: the value of SHEAR's weights and of some of our own rules, compared
# with blame on the known error, on chain arithmetic. 325 runs take 100 seconds each on a core, nine hours in all. You
# can interrupt and restart it at any time.
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
# Requests of an audit of the first runs: surprising tokens that are not the error, the oracle's own control, error_odds
# in a random order; and a check whether another learning rate is better for GRPO (`rate`).
ASKED=(uniform shear shear/permuted oracle_first_wrong oracle_first_wrong/hits=0 oracle_first_wrong/matched error_odds/shuffled)

for arm in $ARMS; do
    case $arm in
    all) lab all "$(join "${PAPER[@]}" "${TRUTH[@]}" "${CONTROLS[@]}" "${OURS[@]}")" ;;
    fresh) lab fresh "$(join "${AGAIN[@]}")" --first-seed 100 ;;                 # on seeds that no choice was based on
    weak) # a weaker policy on shorter chains
        POLICY=$OUT/weak/policy
        [ -f "$POLICY/README.md" ] ||
            python -m openrlhf_shear.cli.warm_up arithmetic --out "$POLICY" --operations 5 --target-accuracy 0.2
        lab weak "$(join "${AGAIN[@]}")" --operations 5 --start "$POLICY"
        ;;
    controls) lab controls "$(join "${ASKED[@]}")" ;;
    rate) for rate in 5e-5 1e-4 2e-4; do SEEDS=5 lab "rate$rate" uniform --learning-rate $rate; done ;;
    *) echo "no such arms: $arm" >&2 && exit 2 ;;
    esac
done
