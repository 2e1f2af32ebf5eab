#!/usr/bin/env bash
# Train a real pretrained model with the same command: SmolLM2-135M-Instruct on GSM8K-style problems, a few steps.
#
#   examples/scripts/train_shear_smollm2.sh           STEPS=3 RUN=runs/... SEED=0 ESTIMATOR=shear LR=1e-6 to change it
#   GSM8K=path/to/train.jsonl examples/...            the real GSM8K (columns question, answer), not templates
set -euo pipefail
cd "$(dirname "$0")/../.."

STEPS=${STEPS:-3} SEED=${SEED:-0} ESTIMATOR=${ESTIMATOR:-shear} LR=${LR:-1e-6}
RUN=${RUN:-runs/smollm2-$(date +%m%d-%H%M%S)}
DATA=${DATA:-runs/smollm2-data} # the converted model is kept between runs
PROMPTS=${PROMPTS:-4}           # prompts a step, 8 rollouts each
SPANS=()
[ "$ESTIMATOR" != shear ] || SPANS=(--shear.window 32 --shear.stride 8)

[ -n "${GSM8K:-}" ] || python -m openrlhf_shear.cli.make_smollm2 --out "$DATA" --problems $((STEPS * PROMPTS))
DATASET=${GSM8K:-$DATA/train.jsonl}

python -m openrlhf_shear.cli.train_ppo_ray \
    --algo.advantage.estimator "$ESTIMATOR" "${SPANS[@]}" \
    --actor.model_name_or_path "$DATA/policy" \
    --reward.remote_url openrlhf_shear/rewards/last_number.py \
    --data.prompt_dataset "$DATASET" --data.input_key question --data.label_key answer --data.apply_chat_template \
    --data.max_samples $((STEPS * PROMPTS)) \
    --train.colocate_all --actor.num_gpus_per_node 1 --ref.num_gpus_per_node 1 --train.seed "$SEED" \
    --vllm.num_engines 1 --vllm.enforce_eager \
    --rollout.batch_size "$PROMPTS" --rollout.n_samples_per_prompt 8 --rollout.micro_batch_size 4 \
    --train.batch_size $((PROMPTS * 8)) --train.micro_batch_size 4 \
    --data.max_len 256 --rollout.max_new_tokens 100 --rollout.temperature "${TEMPERATURE:-0.7}" \
    --actor.adam.lr "$LR" --actor.eps_clip_low_high 0.2 0.28 \
    --algo.kl.init_coef 0 --algo.advantage.is_correction_level token \
    --ckpt.output_dir "$RUN/checkpoint" --ckpt.path "$RUN/ckpt" \
    --logger.tensorboard_dir "$RUN/tensorboard" --logger.wandb.run_name smollm2 "$@"

python -m openrlhf_shear.cli.report "$RUN" --output "$RUN/report"
