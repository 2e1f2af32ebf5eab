#!/usr/bin/env bash
# Run an experiment of the paper: a method, a backbone and a task, with the paper's settings.
#
#   examples/scripts/paper/run.sh METHOD MODEL TASK [--group 8|16] [--seed N] [--smoke] [--dry-run] [FLAG ...]
#
#   METHOD   grpo, shear, entropy_adv, prm_reshape, pure (the last two on math only)
#   MODEL    qwen2.5-math-7b (math), qwen2.5-coder-7b (code), llama3.1-8b, qwen2.5-14b
#   TASK     math, code; examples/scripts/paper/data.sh makes the data
#   FLAG     any flag of train_ppo_ray, e.g. --shear.distance mmd; it overrides the flags below
#
# --dry-run prints the command and starts nothing. --smoke uses the built-in policy, a few problems and two steps on the
# CPU. Environment variables: DATA, RUNS (folders), NODES, GPUS (a node), EVAL (benchmarks, separated by commas),
# BENCHMARKS (folder with their files; default: the hub), EPISODES, BATCH (rollouts a step), MINI_BATCH (rollouts an
# update), PRM (the process reward model). docs/recipes.md explains the details.
set -euo pipefail
cd "$(dirname "$0")/../../.."

fail() {
    echo "run.sh: $*" >&2
    exit 2
}
[ $# -ge 3 ] || fail "needs METHOD MODEL TASK: got '$*'; use e.g. $0 shear qwen2.5-math-7b math"
METHOD=$1 MODEL=$2 TASK=$3
shift 3

GROUP=8 SEED=0 SMOKE='' DRY_RUN='' EXTRA=()
while [ $# -gt 0 ]; do
    case $1 in
        --group) GROUP=${2:?needs a number} && shift 2 ;;
        --seed) SEED=${2:?needs a number} && shift 2 ;;
        --smoke) SMOKE=yes && shift ;;
        --dry-run) DRY_RUN=yes && shift ;;
        *) EXTRA+=("$1") && shift ;;
    esac
done

DATA=${DATA:-runs/data} RUNS=${RUNS:-runs}
NODES=${NODES:-1} GPUS=${GPUS:-8}
BATCH=${BATCH:-512} MINI_BATCH=${MINI_BATCH:-32}
PRM=${PRM:-Qwen/Qwen2.5-Math-PRM-7B}

# ── The table: backbones, tasks, methods ──

case $MODEL in
    qwen2.5-math-7b) HUB=Qwen/Qwen2.5-Math-7B TASKS='math' ;;
    qwen2.5-coder-7b) HUB=Qwen/Qwen2.5-Coder-7B TASKS='code' ;;
    llama3.1-8b) HUB=meta-llama/Llama-3.1-8B-Instruct TASKS='math code' ;;
    qwen2.5-14b) HUB=Qwen/Qwen2.5-14B TASKS='math code' ;;
    *) fail "MODEL is not known: got $MODEL; use qwen2.5-math-7b, qwen2.5-coder-7b, llama3.1-8b or qwen2.5-14b" ;;
esac
case $TASK in
    math) EPISODES=${EPISODES:-2} ;;
    code) EPISODES=${EPISODES:-1} ;;
    *) fail "TASK is not known: got $TASK; use math or code" ;;
esac
case $METHOD in
    grpo) METHOD_FLAGS=(--algo.advantage.estimator group_norm) ;;
    shear) METHOD_FLAGS=(--algo.advantage.estimator shear
        --shear.window 100 --shear.stride 25 --shear.epsilon 4.5) ;;
    entropy_adv) METHOD_FLAGS=(--algo.advantage.estimator entropy_adv) ;;
    prm_reshape | pure) METHOD_FLAGS=(--algo.advantage.estimator "$METHOD") ;; # and the PRM's, below
    *) fail "METHOD is not known: got $METHOD; use grpo, shear, entropy_adv, prm_reshape or pure" ;;
esac
[[ " $TASKS " = *" $TASK "* ]] || fail "$MODEL is trained on $TASKS in the paper: got $TASK; use $TASKS"
[[ $TASK = math || $METHOD != p* ]] || fail "$METHOD needs a PRM, which is for mathematics: got $TASK; use math"
[[ $GROUP =~ ^[1-9][0-9]*$ ]] || fail "--group must be a number of rollouts: got $GROUP; use e.g. 8"
((BATCH % GROUP == 0)) || fail "BATCH must be a multiple of --group ($GROUP): got $BATCH; use e.g. BATCH=$(((BATCH / GROUP + 1) * GROUP))"

NAME=$METHOD-$MODEL-$TASK-g$GROUP-seed$SEED${SMOKE:+-smoke}
for word in "${EXTRA[@]}"; do # each run of a sweep gets a separate folder
    word=${word#--}
    NAME+=-${word//\//_}
done
RUN=$RUNS/$NAME
TRAIN=$DATA/$TASK.jsonl EVAL=${EVAL:-$TASK}

# ── The built-in policy and a few problems, for --smoke ──

SMOKE_FLAGS=()
smoke_data() { # uses the same prepare_data as the real data sets
    local arithmetic=(--source columns --prompt-key prompt --label-key answer --system '') name
    python -m openrlhf_shear.cli.make_arithmetic --out "$RUN/smoke" --train 4 --heldout 4 --seed "$SEED" --prm
    echo '{% for message in messages %}{{ message.content }}{% endfor %}' >"$RUN/smoke/policy/chat_template.jinja"
    if [ "$TASK" = math ]; then
        python -m openrlhf_shear.cli.prepare_data "${arithmetic[@]}" --input "$RUN/smoke/train.jsonl" --output "$TRAIN" --overwrite
        python -m openrlhf_shear.cli.prepare_data "${arithmetic[@]}" --input "$RUN/smoke/heldout.jsonl" --output "$EVAL" --overwrite
        return
    fi
    for name in sum difference product maximum; do
        printf '{"prompt": "Read two integers from one line and print their %s.", "ability": "code", ' "$name"
        printf '"reward_model": {"ground_truth": {"inputs": ["7 7\\n"], "outputs": ["14\\n"]}}}\n'
    done >"$RUN/smoke/code.jsonl"
    python -m openrlhf_shear.cli.prepare_data --source eurus-code --input "$RUN/smoke/code.jsonl" --output "$TRAIN" --overwrite
    cp "$TRAIN" "$EVAL"
}
if [ -n "$SMOKE" ]; then
    TRAIN=$RUN/smoke/$TASK.train.jsonl EVAL=$RUN/smoke/$TASK.eval.jsonl
    NODES=1 GPUS=1 EPISODES=1 BATCH=$((2 * GROUP)) MINI_BATCH=$GROUP
    SMOKE_FLAGS=(--device cpu --actor.model_name_or_path "$RUN/smoke/policy" --vllm.enforce_eager
        --rollout.max_new_tokens 128 --data.max_len 320 --eval.steps 2 --eval.k 1 --ckpt.best_metric_key none)
    # The policy knows arithmetic in a special format. It solves no code problem, but the graders run.
    [ "$TASK" = code ] || SMOKE_FLAGS+=(--reward.remote_url openrlhf_shear/tasks/arithmetic/arithmetic.py)
    [ "$METHOD" != shear ] || SMOKE_FLAGS+=(--shear.window 16 --shear.stride 4) # responses have ~75 tokens here
    [[ $METHOD != p* ]] || SMOKE_FLAGS+=(--prm.separator ';') # responses have no blank lines
    PRM=$RUN/smoke/prm
fi
[[ $METHOD != p* ]] || METHOD_FLAGS+=(--prm.model_name_or_path "$PRM"
    --prm.num_nodes "$NODES" --prm.num_gpus_per_node "$GPUS")

# ── The paper's settings ──

COMMAND=(python -m openrlhf_shear.cli.train_ppo_ray
    "${METHOD_FLAGS[@]}"
    --actor.model_name_or_path "$HUB" --reward.remote_url "$TASK"
    --data.prompt_dataset "$TRAIN" --data.input_key prompt --data.label_key label --data.apply_chat_template
    # Rollouts: batch 512, G a prompt, temperature 1.0, 3k tokens; Qwen2.5-Math has 4096 positions.
    --rollout.batch_size $((BATCH / GROUP)) --rollout.n_samples_per_prompt "$GROUP"
    --rollout.temperature 1.0 --rollout.top_p 1.0 --rollout.max_new_tokens 3072 --data.max_len 4096
    # Updates: mini-batch 32, learning rate 1e-6, clip 0.2-0.28, no KL term; no entropy term is the default.
    --train.batch_size "$MINI_BATCH" --train.num_episodes "$EPISODES" --train.seed "$SEED"
    --actor.adam.lr 1e-6 --actor.lr_scheduler constant --actor.eps_clip_low_high 0.2 0.28 --algo.kl.init_coef 0
    # Every 5 steps the task's five benchmarks, temperature 0.1; the checkpoint with the best average is kept.
    --eval.suite "$EVAL" ${BENCHMARKS:+--eval.data_dir "$BENCHMARKS"}
    --eval.before_train --eval.steps 5 --eval.temperature 0.1
    --ckpt.output_dir "$RUN/checkpoint" --ckpt.path "$RUN/ckpt" --ckpt.save_hf --ckpt.max_num 1
    # The same command resumes a killed run, and the run restarts itself up to three times.
    --ckpt.save_steps 10 --ckpt.load_enable --train.max_restarts 3
    --train.grace_seconds "${GRACE_SECONDS:-120}"
    # The machine: actor and engines take turns on all GPUs.
    --train.colocate_all --vllm.enable_sleep --ds.enable_sleep --vllm.gpu_memory_utilization 0.6
    --actor.num_nodes "$NODES" --actor.num_gpus_per_node "$GPUS" --ref.num_nodes "$NODES" --ref.num_gpus_per_node "$GPUS"
    --vllm.num_engines $((NODES * GPUS)) --ds.zero_stage 3 --actor.gradient_checkpointing_enable
    --ds.packing_samples --train.dynamic_batch_enable --train.max_tokens_per_gpu 16384
    --logger.tensorboard_dir "$RUN/tensorboard" --logger.wandb.run_name "$NAME"
    "${SMOKE_FLAGS[@]}" "${EXTRA[@]}")

if [ -n "$DRY_RUN" ]; then
    printf '%q ' "${COMMAND[@]}"
    echo
    exit
fi
if [ -n "$SMOKE" ]; then
    smoke_data
elif [ ! -f "$TRAIN" ]; then
    fail "DATA must hold $TASK.jsonl: got $DATA; use DATA=$DATA examples/scripts/paper/data.sh $TASK to make it"
fi
trap 'exit 75' TERM INT # runs after the training, which gets the signal too, has saved and ended
"${COMMAND[@]}"
python -m openrlhf_shear.cli.report "$RUN" --output "$RUN/report"
