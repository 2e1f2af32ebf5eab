#!/usr/bin/env bash
# Train SHEAR on the built-in arithmetic task with the built-in 0.6M-parameter policy. Needs no download and no GPU.
#
#   examples/scripts/train_shear_arithmetic.sh        SEED=0 STEPS=40 ESTIMATOR=shear RUN=runs/... to change it
#
# ESTIMATOR=group_norm trains the same job with plain GRPO. Any flag of train_ppo_ray may follow, and overrides the rest.
set -euo pipefail
cd "$(dirname "$0")/../.."

SEED=${SEED:-0}
STEPS=${STEPS:-40}
ESTIMATOR=${ESTIMATOR:-shear}
RUN=${RUN:-runs/arithmetic-$ESTIMATOR-seed$SEED-$(date +%m%d-%H%M%S)}
PROMPTS=16 # prompts a step, 8 rollouts each

SHEAR_FLAGS=()
if [ "$ESTIMATOR" = shear ]; then
    # Responses are ~75 tokens here, so the spans are shorter than the paper's 100 and 25.
    SHEAR_FLAGS=(--shear.window 16 --shear.stride 4 --shear.epsilon_rel 0.03)
fi

python -m openrlhf_shear.cli.make_arithmetic --out "$RUN/data" --train $((STEPS * PROMPTS)) --heldout 512 --seed "$SEED"

python -m openrlhf_shear.cli.train_ppo_ray \
    --algo.advantage.estimator "$ESTIMATOR" "${SHEAR_FLAGS[@]}" \
    --actor.model_name_or_path "$RUN/data/policy" \
    --reward.remote_url openrlhf_shear/tasks/arithmetic/arithmetic.py \
    --data.prompt_dataset "$RUN/data/train.jsonl" --data.input_key prompt --data.label_key answer \
    --eval.dataset "$RUN/data/heldout.jsonl" --eval.before_train --eval.steps "$STEPS" \
    --eval.temperature 1.0 --eval.n_samples_per_prompt 2 \
    --train.colocate_all --actor.num_gpus_per_node 1 --ref.num_gpus_per_node 1 \
    --vllm.num_engines 1 --vllm.enforce_eager --vllm.enable_prefix_caching \
    --rollout.batch_size $PROMPTS --rollout.n_samples_per_prompt 8 --rollout.micro_batch_size 64 \
    --train.batch_size 64 --train.micro_batch_size 64 --train.seed "$SEED" \
    --data.max_len 256 --rollout.max_new_tokens 160 \
    --actor.adam.lr 1e-4 --actor.lr_scheduler constant --actor.eps_clip_low_high 0.2 0.28 \
    --algo.kl.init_coef 0 --algo.advantage.is_correction_level token \
    --ckpt.output_dir "$RUN/checkpoint" --ckpt.best_metric_key none --ckpt.path "$RUN/ckpt" \
    --logger.tensorboard_dir "$RUN/tensorboard" --logger.wandb.run_name "$ESTIMATOR-seed$SEED" "$@"

python -m openrlhf_shear.cli.report "$RUN" --output "$RUN/report"
