#!/usr/bin/env bash
# The comparison of docs/bookkeeping.md. You can interrupt and restart it at any time; finished runs are rows of
# benchmarks/results/bookkeeping_runs.jsonl.xz. A run takes two to two and a half minutes on a core (1.9M parameters; 5.1M: four). All 421
# runs take about 18 hours on a core. The larger policy, which takes an hour on a core, is unpacked from an archive.
#
#   examples/scripts/ledger.sh     ARMS="primary secondary" (all: below) SEEDS=14 WORKERS=1 OUT=runs/ledger/lab
#                                  LARGE=runs/ledger/large to change it
#
# ARMS=again trains the primary comparison and its control anew with today's code: 42 runs, in a table of their own. They are
# not mixed with the runs of earlier code, which have the same settings.
set -euo pipefail
cd "$(dirname "$0")/../.."

ARMS=${ARMS:-primary secondary references added tried judge window rate faster tail large judge_large pictures text}
SEEDS=${SEEDS:-14} WORKERS=${WORKERS:-1}
OUT=${OUT:-runs/ledger/lab} LARGE=${LARGE:-runs/ledger/large} TABLE=bookkeeping_runs
export PYTHONPATH=.${PYTHONPATH:+:$PYTHONPATH}

lab() { # SEEDS RULES [flags]
    local seeds=$1 rules=$2
    shift 2
    python -m openrlhf_shear.cli.lab --task bookkeeping --rules "$rules" --seeds "$seeds" --prompts 8 --steps 20 --eval-problems 256 \
        --window 32 --stride 8 --epsilon-rel 0.015 --placement-prompts 32 --workers "$WORKERS" --output "$OUT" "$@"
}

warmed_up() { # this command made the archive: python -m openrlhf_shear.cli.warm_up bookkeeping --size large --out "$LARGE"
    if [ ! -f "$LARGE/model.safetensors" ]; then
        python -m tarfile -e benchmarks/results/bookkeeping_large.tar.xz "$LARGE.partial" # if killed, the next start unpacks again
        mkdir -p "$LARGE"
        mv "$LARGE.partial"/* "$LARGE"
    fi
}

PRIMARY=uniform,shear
SECONDARY=$PRIMARY,shear/matched,shear/permuted,error_odds/rise=0,error_odds,shear/on_incorrect,shear/shuffled
REFERENCES=uniform,oracle_first_wrong,oracle_first_wrong/hits=0,oracle_first_wrong/matched,oracle_from_error
CHANGE=examples.rules.change_rule:ChangeRule CONTRAST=examples.rules.contrast_rule:ContrastRule
SURPRISAL=error_odds/surprisal=4/entropy=0/rise=0 BEST=error_odds/surprisal=4/entropy=0/reach=32/epsilon_rel=0.015
TRIED=uniform,$SURPRISAL,$CHANGE,$CHANGE/window=1/rise=2,$BEST,$CONTRAST,$CONTRAST/surprisal=0
TRIED=$TRIED,examples.rules.discriminant_rule:DiscriminantRule
TEXT=examples.rules.text_odds:TextOddsRule/surprisal=4/entropy=0/reach=32/epsilon_rel=0.015
JUDGED=shear,$SURPRISAL,$BEST,$BEST/matched
ADDED=shear/normalize=per_rollout,shear/on_incorrect/matched

if [ "$ARMS" = again ]; then OUT=runs/ledger/again TABLE=bookkeeping_again_runs; fi
if [ "$ARMS" = step_size ]; then OUT=runs/ledger/step_size TABLE=step_size_runs; fi
python benchmarks/run_tables.py unpack $TABLE "$OUT"
trap 'python benchmarks/run_tables.py pack $TABLE "$OUT"' EXIT # also keeps finished runs after an interrupt
for arm in $ARMS; do
    case $arm in
    primary) lab "$SEEDS" $PRIMARY ;;
    again)
        [ "$ARMS" = again ] || { echo "ARMS=again goes alone" >&2 && exit 2; }
        lab "$SEEDS" $PRIMARY,shear/matched
        python benchmarks/run_tables.py unpack bookkeeping_runs runs/ledger/lab
        python benchmarks/ledger_comparison.py --runs "$OUT" --earlier runs/ledger/lab --output benchmarks/results/ledger_again.json
        exit
        ;;
    secondary) lab "$SEEDS" $SECONDARY ;;
    references) lab "$SEEDS" $REFERENCES ;;
    added) lab "$SEEDS" $PRIMARY,$ADDED ;;
    tried) lab 4 "$TRIED" --first-seed 900 ;;
    judge) lab "$SEEDS" "$JUDGED" --first-seed 100 --baseline "$SURPRISAL" ;;
    large) warmed_up; lab "$SEEDS" $PRIMARY --start "$LARGE" ;;
    judge_large) warmed_up; lab "$SEEDS" "$JUDGED" --first-seed 100 --baseline "$SURPRISAL" --start "$LARGE" ;;
    window) lab 5 $PRIMARY,shear/window=8/stride=2,shear/window=16/stride=4,shear/window=64/stride=16 ;;
    text) lab 0 "uniform,$SURPRISAL,$BEST,$BEST/rise=4,$TEXT/rise=2,$TEXT/rise=4,$TEXT/rise=6,$TEXT/rise=10,$TEXT/rise=4/ngram=4,$TEXT/rise=4/ngram=2" --placement-prompts 64 ;; # trains nothing
    tail) lab 5 $PRIMARY,shear/tail=every ;;
    pictures) lab "$SEEDS" "$SECONDARY,${REFERENCES#uniform,},$ADDED" ;; # pictures of all rules with these seeds; trains missing runs
    rate) for rate in 5e-5 1e-4 2e-4; do lab 5 uniform --learning-rate $rate; done ;;
    faster) lab "$SEEDS" $PRIMARY --learning-rate 2e-4 ;; # as planned, since `rate` found this better by more than a point
    step_size) # planned before its runs: is a rule's gain more than a larger step of GRPO, and more than its amount of blame?
        for rate in 1.4e-4 2e-4 2.8e-4; do lab "$SEEDS" uniform --first-seed 300 --learning-rate $rate; done
        [ "$ARMS" = step_size ] || { echo "ARMS=step_size goes alone" >&2 && exit 2; }
        lab "$SEEDS" "uniform,error_odds,error_odds/matched,$BEST,$BEST/matched" --first-seed 300
        exit
        ;;
    *) echo "no such arms: $arm" >&2 && exit 2 ;;
    esac
done
python benchmarks/ledger_comparison.py --runs "$OUT" --output benchmarks/results/ledger_comparison.json
