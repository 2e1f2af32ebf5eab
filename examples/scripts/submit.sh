#!/usr/bin/env bash
# Submit a script of this checkout to a running Ray cluster, and wait for it:
#
#   RAY_API_SERVER_ADDRESS=http://head:8265 DATA=/shared/data RUNS=/shared/runs \
#       examples/scripts/submit.sh examples/scripts/paper/run.sh shear qwen2.5-math-7b math
#
# The checkout is sent along as the job's working directory, so every node runs this code and not an installed copy.
# DATA and RUNS must be folders that all nodes see. RUNTIME_ENV: a YAML file with more of Ray's runtime environment
# (HF_TOKEN, WANDB_API_KEY; everyone with access to the dashboard can read them). If the cluster requires a token
# (RAY_AUTH_MODE=token), set RAY_AUTH_MODE=token here too, with RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH. The exit code is 0
# only if the job succeeded. SIGTERM stops the job; SIGUSR1 lets it save and exits with 75 (see
# RAY_JOB_STOP_WAIT_TIME_S below).
set -euo pipefail

: "${1:?needs a script to run, with its arguments}"
: "${RAY_API_SERVER_ADDRESS:=http://127.0.0.1:8265}"
export RAY_API_SERVER_ADDRESS DATA RUNS
# Absolute paths, because the job runs in another folder.
DATA=$(realpath -m "${DATA:-runs/data}") RUNS=$(realpath -m "${RUNS:-runs}")
[ -z "${BENCHMARKS-}" ] || BENCHMARKS=$(realpath -m "$BENCHMARKS")
[ -z "${RUNTIME_ENV-}" ] || RUNTIME_ENV=$(realpath "$RUNTIME_ENV")
# Ray's client would ask a site's proxy for the cluster.
cluster=${RAY_API_SERVER_ADDRESS#*://} cluster=${cluster%%[:/]*}
export no_proxy=$cluster${no_proxy:+,$no_proxy} NO_PROXY=$cluster${NO_PROXY:+,$NO_PROXY}
cd "$(dirname "$0")/../.."

# Variables for run.sh go on the command line, because the user's RUNTIME_ENV may set the environment's variables.
settings=(DATA="$DATA" RUNS="$RUNS")
for name in NODES GPUS EVAL BENCHMARKS EPISODES BATCH MINI_BATCH PRM GRACE_SECONDS; do
    [ -z "${!name-}" ] || settings+=("$name=${!name}")
done

# Ray quotes for another shell than the one that runs the job: it puts double quotes around words with blanks only.
for word in "${settings[@]}" "$@"; do
    changed=
    case $word in
        *[\\\$\`]* | *$'\n'*) changed=1 ;;
        *[[:blank:]]*) ;;
        *[\;\&\|\<\>\(\)*?\'{[]* | '#'* | '~'* | *'=~'*) changed=1 ;;
    esac
    [ -z "$changed" ] || {
        echo "submit.sh: Ray does not pass on: $word; put the flag into a YAML file and give --config FILE" >&2
        exit 2
    }
done

id=$(basename "$1" | tr -c 'a-zA-Z0-9\n' _)_$(date +%m%d%H%M%S)_$$
# Without this, an abandoned job would keep its GPUs.
trap 'ray job stop --no-wait "$id" >/dev/null 2>&1 || true; exit 143' INT TERM
succeeded() { ray job status "$id" 2>&1 | grep succeeded >/dev/null; }
# Ray gives a job three seconds to end, or RAY_JOB_STOP_WAIT_TIME_S seconds if `ray start` had that variable.
trap 'ray job stop "$id" || true; succeeded && exit 0; exit 75' USR1
# Without this the log would arrive in blocks of 8 KiB if stdout is a file, as in a Slurm job.
# srun sends USR1 to all processes of a step. This process ignores it, to show the log of a training that saves.
(trap '' USR1 && PYTHONUNBUFFERED=1 exec ray job submit --submission-id "$id" --working-dir . \
    ${RUNTIME_ENV:+--runtime-env "$RUNTIME_ENV"} -- env "${settings[@]}" "$@") &
wait $!
# `ray job submit` also exits with 0 if the job was stopped, or if a proxy cut the connection of a log without news: the
# job then goes on, and this script waits for it.
for ((missed = 0; missed < 20; missed++)); do
    if said=$(ray job status "$id" 2>&1); then
        grep -E 'PENDING|RUNNING' <<<"$said" >/dev/null || break
        missed=0
    fi
    sleep "${POLL_SECONDS:-30}" &
    wait $!
done
grep succeeded <<<"$said" >/dev/null
