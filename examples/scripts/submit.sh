#!/usr/bin/env bash
# Submit a script of this checkout to a running Ray cluster, and wait for it:
#
#   RAY_API_SERVER_ADDRESS=http://head:8265 DATA=/shared/data RUNS=/shared/runs \
#       examples/scripts/submit.sh examples/scripts/paper/run.sh shear qwen2.5-math-7b math
#
# The checkout is sent along as the job's working directory, so this code runs on every node and not an installed copy.
# DATA and RUNS must be folders that all nodes see. RUNTIME_ENV: a YAML file for more of Ray's runtime environment
# (HF_TOKEN, WANDB_API_KEY: whoever sees the dashboard sees them). A cluster that asks for a token (RAY_AUTH_MODE=token)
# gets that of RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, with RAY_AUTH_MODE=token here too. Ends with 0 only if the job
# succeeded; SIGTERM stops the job, and SIGUSR1 lets it save and ends with 75 (see RAY_JOB_STOP_WAIT_TIME_S below).
set -euo pipefail

: "${1:?needs a script to run, with its arguments}"
: "${RAY_API_SERVER_ADDRESS:=http://127.0.0.1:8265}"
export RAY_API_SERVER_ADDRESS DATA RUNS
# The job runs in another folder.
DATA=$(realpath -m "${DATA:-runs/data}") RUNS=$(realpath -m "${RUNS:-runs}")
[ -z "${BENCHMARKS-}" ] || BENCHMARKS=$(realpath -m "$BENCHMARKS")
cd "$(dirname "$0")/../.."

# What run.sh reads is handed over on the command line: a runtime environment has one place for variables, the user's.
settings=(DATA="$DATA" RUNS="$RUNS")
for name in NODES GPUS EVAL BENCHMARKS EPISODES BATCH MINI_BATCH PRM; do
    [ -z "${!name-}" ] || settings+=("$name=${!name}")
done

id=$(basename "$1" | tr -c 'a-zA-Z0-9\n' _)_$(date +%m%d%H%M%S)_$$
# A job that nobody waits for any more goes on holding the GPUs.
trap 'ray job stop --no-wait "$id" >/dev/null 2>&1 || true; exit 143' INT TERM
succeeded() { ray job status "$id" 2>&1 | grep succeeded >/dev/null; }
# Ray gives a job three seconds to end, or what RAY_JOB_STOP_WAIT_TIME_S was for `ray start`.
trap 'ray job stop "$id" || true; succeeded || exit 75' USR1
# Into a file, as in a Slurm job, the log would otherwise come in blocks of 8 KiB.
PYTHONUNBUFFERED=1 ray job submit --submission-id "$id" --working-dir . ${RUNTIME_ENV:+--runtime-env "$RUNTIME_ENV"} -- \
    env "${settings[@]}" "$@" &
wait $!
# A job that was stopped, or whose log was cut off, counts as good for `ray job submit`.
succeeded
