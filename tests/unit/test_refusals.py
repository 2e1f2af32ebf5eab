"""What cannot work is refused before anything starts, in a line that says what is wrong, what it got and what helps."""

from importlib import import_module
from pathlib import Path

import pytest
from command_lines import refusal

from openrlhf_shear.arithmetic import arithmetic
from openrlhf_shear.cli import serve_reward
from openrlhf_shear.lab import known
from openrlhf_shear.rollouts.record import write_rollouts

# Words of a line of training, and parts of what is said of them.
REFUSED = """
# words of the line
AS grpo => invalid choice: 'grpo' | group_norm | shear
AS unifrom => invalid choice: 'unifrom'
--shear.distance l2 => --shear.distance | invalid choice: 'l2' | sinkhorn
--shear.window many => --shear.window | invalid int value: 'many'
--shear.window 0 => shear.window must be at least 1: got 0
--shear.stride 200 => shear.stride must not exceed shear.window (100) | got 200
--shear.epsilon -1 => shear.epsilon must be a positive number: got -1.0
--device tpu => --device | invalid choice: 'tpu'
--vllm_is_correction_type x => --vllm_is_correction_type is not known: got 'x'
--no.such.flag => unrecognized arguments: --no.such.flag
# knobs behind a rule's name, and rules that cannot be had
AS shear/windw=4 => no knob windw; shear has window, stride
AS shear/window=4.5 => window must be a whole number: got '4.5'
AS shear/window=0 => shear.window must be at least 1: got 0
AS shear/window => 'window' is no KNOB=VALUE
AS shear/window=4/window=5 => the knob window is there twice
AS uniform/power=2 => uniform has no knobs: got power
AS openrlhf_shear_examples.error_odds:ErrorOddsRule/strength=2 => ErrorOddsRule(strength=2) raised TypeError
AS error_odds --error_odds.rise -1 => error_odds.rise must be at least 0
AS shear/window=50 --shear.window 60 => shear/window=50 and --shear.window both set window; use one
AS my_rules:Better => has nothing of that name
AS uniform --rollout.n_samples_per_prompt 1 => greater than 1 for estimator uniform
AS uniform --ds.ring_attn_size 2 => which estimator uniform does not support
# what is missing
no:actor.model_name_or_path => actor.model_name_or_path is needed
no:data.prompt_dataset => data.prompt_dataset is needed
no:reward.remote_url => reward.remote_url is needed, or nothing gives a reward
no:vllm.num_engines => vllm.num_engines must be at least 1
NO_CODE /nowhere => reward.model_name_or_path names a folder that is not there
NO_CODE model,other => reward.model_name_or_path must be one model
NO_CODE model SHARED => reward.num_nodes must not exceed the 2 GPUs
--actor.model_name_or_path . => actor.model_name_or_path names a folder without config.json
# groups, and what SHEAR does not do
--rollout.n_samples_per_prompt 1 => rollout.n_samples_per_prompt must be greater than 1 | shear | got 1
--ds.ring_attn_size 2 => ds.ring_attn_size means ring attention | shear does not support | got 2; use 1
--ds.tensor_parallel_size 2 => ds.tensor_parallel_size means a tensor parallel actor | not support
--train.async_enable => train.async_enable means asynchronous training | not support
--data.max_images_per_prompt 1 => data.max_images_per_prompt means images | not support
--shear.dump_rollouts_every -1 => shear.dump_rollouts_every must be at least 0 | got -1 | 0 for never
GRPO --shear.dump_rollouts_every 5 =>
    dump_rollouts_every needs a credit rule, which group_norm is not | got 5 | estimator uniform
AS entropy_adv --shear.dump_rollouts_every 5 =>
    dump_rollouts_every has nothing to show of estimator entropy_adv | only in the update | use 0
# counts and modes
--vllm.num_engines -1 => vllm.num_engines must be at least 1 | got -1
--train.micro_batch_size 0 => train.micro_batch_size must be at least 1 | got 0
--eval.suite maths --eval.steps 5 => eval.suite: no benchmark is called 'maths' (did you mean math?)
--eval.suite gsm8k --eval.data_dir . --eval.steps 5 => eval.suite: GSM8K is not in . | tried gsm8k/test.jsonl
--eval.suite prompts.jsonl => eval.steps must be at least 1 for --eval.suite: got -1
--eval.suite prompts.jsonl --eval.k -1 --eval.steps 5 => eval.k must be at least 0: got -1
--eval.suite nowhere.jsonl --eval.steps 5 => eval.suite: nowhere.jsonl does not exist
GRPO --eval.suite gsm8k --train.async_enable => eval.suite does not go with --train.async_enable
--actor.dual_clip 0.5 => actor.dual_clip must be greater than 1: got 0.5
--algo.dynamic_filtering_enable --algo.dynamic_filtering_range 1 0 =>
    algo.dynamic_filtering_range | LOW < HIGH | got (1.0, 0.0)
--eval.before_train => eval.before_train needs something to evaluate on | --eval.dataset or --eval.suite too
--eval.before_train --eval.dataset prompts.jsonl --train.async_enable GRPO =>
    eval.before_train does not go with --train.async_enable
GRPO --data.max_images_per_prompt 1 --train.dynamic_batch_enable =>
    train.dynamic_batch_enable packs samples, which does not go with images
# importance-sampling correction, as OpenRLHF's PolicyLoss asserts
--algo.advantage.is_correction_level seq --algo.advantage.is_correction_mode clip =>
    is_correction_mode clip clamps token ratios | level seq
--algo.advantage.is_correction_level seq --algo.advantage.is_correction_gating tv =>
    is_correction_threshold is an upper bound only for gating tv | a single HIGH
# rewards
--reward.remote_url nowhere.py => reward.remote_url names a file that is not there | 'nowhere.py'
--reward.remote_url prompts.jsonl => reward.remote_url is no reward | math, code, the path of a .py file
--reward.remote_url math,code => reward.remote_url is no reward | 'math,code'
--reward.remote_url http://one:5000,reward.py => reward.remote_url names a file that is not there
--reward.remote_url empty.py => reward.remote_url names a file without reward_func | 'empty.py'
--reward.remote_url code GRPO --train.async_enable =>
    reward.remote_url does not go with --train.async_enable | cli.serve_reward
--reward.timeout -1 => reward.timeout must be at least 0
--reward.memory_mb 1 => reward.memory_mb must be at least 64
# GPUs
--train.colocate_all --ref.num_gpus_per_node 2 =>
    vllm.num_engines times vllm.tensor_parallel_size must equal the 2 GPUs of the actor | got 1
--train.colocate_all --vllm.num_engines 2 => ref.num_gpus_per_node must equal actor.num_gpus_per_node (2) | got 8; use 2
--train.colocate_actor_ref => ref.num_gpus_per_node must equal actor.num_gpus_per_node (2)
AS gae --train.colocate_critic_reward --critic.num_gpus_per_node 4 =>
    critic.num_gpus_per_node must equal reward.num_gpus_per_node (8) | got 4
AS gae SHARED => critic.num_gpus_per_node times critic.num_nodes must not exceed the 2 GPUs | got 8
# batches
--train.batch_size 126 --train.micro_batch_size 4 =>
    train.batch_size must be a multiple of train.micro_batch_size (4) times the 2 actor ranks | use e.g. 128
--rollout.batch_size 1 --rollout.micro_batch_size 4 =>
    gives 4 rollouts, less than one micro-batch of 4 for each of 2 actor ranks
--rollout.batch_size 1 --train.batch_size 16 --train.micro_batch_size 8 =>
    train.micro_batch_size exceeds a rank's share of the 4 rollouts | no training step
--rollout.batch_size 3 --rollout.micro_batch_size 4 GRPO =>
    12 rollouts | do not share out evenly over 2 actor ranks | 4 to 8 training steps
--train.dynamic_batch_enable --rollout.batch_size 16 =>
    train.batch_size exceeds the 64 rollouts | no optimizer step | got 128; use at most 64
--train.agent_func_path nowhere.py => train.agent_func_path must be a Python file | 'nowhere.py'
--train.agent_func_path model => train.agent_func_path must be a Python file
# models
--actor.model_name_or_path ./nowhere => actor.model_name_or_path names a folder that is not there
--actor.model_name_or_path ~/nowhere => is not there (the shell did not expand ~)
--actor.model_name_or_path reward.py/../. => a folder | reward.py/../.
AS gae --critic.model_name_or_path /nowhere --critic.num_gpus_per_node 1 =>
    critic.model_name_or_path names a folder that is not there
# data sets
--data.prompt_dataset nowhere.jsonl => data.prompt_dataset: nowhere.jsonl does not exist
--data.prompt_dataset ./nowhere => data.prompt_dataset: ./nowhere does not exist
--data.prompt_dataset reward.py => loading script | no longer runs
--data.prompt_dataset prompts.jsonl,nowhere.csv => nowhere.csv does not exist
--data.prompt_probs 0.5,0.5 => data.prompt_probs must be one for each of 1 data sets
--data.prompt_split test => data.prompt_split: prompts.jsonl has no split 'test'; use one of train
--eval.dataset nowhere.json => eval.dataset: nowhere.json does not exist
--data.input_key prompt =>
    data.input_key is not a column of prompts.jsonl | got 'prompt' | --data.input_key | question, answer
--data.label_key gold =>
    data.label_key is not a column of prompts.jsonl (--data.prompt_dataset) | got 'gold' | question, answer
# process reward models
AS prm_reshape --algo.kl.init_coef 0 => prm.model_name_or_path is needed | prm_reshape
AS pure --algo.kl.init_coef 0 => prm.model_name_or_path is needed | pure
AS my_rules:Reader --algo.kl.init_coef 0 => prm.model_name_or_path is needed | my_rules:Reader
RESHAPE model => prm.model_name_or_path is no process reward model | says None, not Qwen2ForProcessRewardModel
RESHAPE ./nowhere => prm.model_name_or_path names a folder that is not there
RESHAPE . => prm.model_name_or_path names a folder without config.json
RESHAPE PRM --prm.max_len 4097 => prm.max_len exceeds the model's 4096 positions | use at most 4096
RESHAPE PRM SHARED => prm.num_gpus_per_node times prm.num_nodes must not exceed the 2 GPUs | --train.colocate_all: got 8
RESHAPE PRM SHARED --prm.num_gpus_per_node 2 --prm.num_nodes 2 => the 2 GPUs of the actor | got 4
RESHAPE PRM --train.async_enable => asynchronous training, which estimator prm_reshape does not support
PURE PRM --rollout.n_samples_per_prompt 1 => must be greater than 1 for estimator pure
PURE PRM => algo.kl.init_coef as a reward would be without effect: estimator pure | got 0.01; use 0, or
PURE PRM --algo.kl.init_coef 0 --reward.overlong_buffer_len 5 =>
    reward.overlong_buffer_len would be without effect: estimator pure makes advantages of its own
PURE PRM --algo.kl.init_coef 0 --reward.stop_properly_penalty_coef 0 =>
    reward.stop_properly_penalty_coef would be without effect
AS my_rules:Maker => algo.kl.init_coef as a reward | estimator my_rules:Maker
RESHAPE PRM --prm.max_len 0 => prm.max_len must be at least 1 | got 0
RESHAPE PRM --prm.offload => prm.offload is ZeRO-3's: got True; use --ds.zero_stage 3 too
RESHAPE PRM --prm.separator= => prm.separator must be ASCII text
"""


def cases(text: str) -> list[list[str]]:
    lines = text.replace("\n    ", " ").strip().splitlines()
    return [line.split(" => ") for line in lines if not line.startswith("#")]


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(("words", "said"), cases(REFUSED))
def test_refused(job, capsys, words, said):
    told = refusal(capsys, job(words))
    assert all(part in told for part in said.split(" | ")), told


# A command, words of its line, and parts of what is said of them.
OTHERS = """
evaluate => exactly one of --benchmarks and --suite
evaluate --benchmarks gsm8k --suite math => exactly one of --benchmarks and --suite
evaluate --benchmarks gsm8k no:model => --model is needed
evaluate --benchmarks gsm8k no:output => --output is needed
evaluate --benchmarks gsm9k => did you mean gsm8k
evaluate --benchmarks gsm8k --k 0 => --k must be at least 1: got 0
evaluate --benchmarks gsm8k --engines 0 => --engines must be at least 1: got 0
evaluate --benchmarks gsm8k --data-dir . => gsm8k/test.jsonl
evaluate --benchmarks mine.jsonl => mine.jsonl
evaluate --benchmarks prompts.jsonl --prompt-key question --label-key answer --temperature -1 =>
    --temperature must be at least 0: got -1.0
evaluate --benchmarks prompts.jsonl --prompt-key ask --label-key answer => ask
evaluate --benchmarks prompts.jsonl --model ./nowhere => --model names a folder that is not there
evaluate --regrade nowhere => must be the folder of an evaluation
diagnose no:dataset => --dataset is needed
diagnose --dataset nowhere.jsonl => nowhere.jsonl
diagnose --dataset math500,aime24 => --dataset must be one benchmark or file
diagnose --label-key gold => has no column gold
diagnose --samples-per-prompt 1 => --samples-per-prompt must be at least 2: got 1
diagnose --completions 0 => --completions must be at least 1: got 0
diagnose --resamples 0 => --resamples must be at least 1: got 0
diagnose --backend triton => shear.backend triton cannot be used
diagnose --engines 0 --dataset gsm8k => --engines must be at least 1: got 0
diagnose --stride 200 => shear.stride must not exceed shear.window (100)
diagnose --model ./nowhere => ./nowhere
diagnose --analyse nowhere => nowhere/prefixes.parquet does not exist
diagnose --temperature -1 => --temperature must be at least 0
lab --rules uniform,sheer => no rule is called 'sheer'
lab --rules shear/windw=4 => no knob windw
lab --rules uniform,my_missing_module:Rule => my_missing_module cannot be imported
lab --seeds -1 => --seeds must be at least 0: got -1
lab --first-seed -1 => --first-seed must be at least 0: got -1
lab --workers 0 => --workers must be at least 1: got 0
lab --operations 9 => the shipped policy knows 7 operations with 2 fillers: got 9 with 2
lab --start no_such_folder => no policy in no_such_folder
lab --mini-batches 0 => lab.mini_batches must be at least 1: got 0
lab --mini-batches 5 => lab.mini_batches must divide 128 rollouts: got 5
lab --precision float64 => invalid choice: 'float64'
prepare_data --label-key missing => has no column missing: got question, answer; use another --source
prepare_data --output train.json => --output must end with .jsonl
prepare_data --max-prompt-tokens 5 => go together
prepare_data --limit 0 => --limit must be at least 1
prepare_data --source columns => --prompt-key is needed with --source columns
prepare_data --input nothing.jsonl => nothing.jsonl does not exist
prepare_data --input ./nothing => ./nothing does not exist
prepare_data --exclude rewards.jsonl => must have its problems in one of problem, question
report model --select worst => must be best, last or a training step: got 'worst'
report model => neither a TensorBoard log nor results.json
rollout_page missing.parquet => missing.parquet does not exist
rollout_page empty.parquet => holds no rollouts
rollout_page empty.parquet --output model => --output model is a folder
rollout_page empty.parquet --limit 0 => at least 1: got '0'
serve_reward --reward nothing.py => --reward must be
serve_reward --reward maths => --reward must be
serve_reward --cores 0 => --cores must be positive
serve_reward --timeout nan => --timeout must be 0 to 180
serve_reward --port 65536 => --port must be
serve_reward --tls-cert cert.pem => go together
serve_reward --tls-cert cert.pem --tls-key key.pem => cannot be used
serve_reward --token-file nowhere => cannot be read
warm_up_arithmetic --operations 13 => operations must be between 1 and 12: got 13
"""
USUAL = {
    "evaluate": {"model": "model", "output": "out"},
    "diagnose": {"model": "model", "dataset": "prompts.jsonl", "output": "out", "task": arithmetic.__file__}
    | {"prompt-key": "question", "label-key": "answer"},
    "lab": {"rules": "uniform", "output": "out"},
    "prepare_data": {"source": "gsm8k", "input": "prompts.jsonl", "output": "train.jsonl"},
    **{"report": {"output": "out"}, "rollout_page": {"output": "page.html"}},
    **{"serve_reward": {"reward": "math"}, "warm_up_arithmetic": {"out": "out"}},
}


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize(("words", "said"), cases(OTHERS))
def test_other_commands_refuse(capsys, monkeypatch, words, said):
    Path("rewards.jsonl").write_text('{"task": "x"}')
    write_rollouts(Path("empty.parquet"), [], {})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv(serve_reward.TOKEN_VARIABLE, "a-token_of-tests.0123")
    monkeypatch.setattr(known, "known_rollouts", lambda *of: pytest.fail("sampled"))
    command, *words = words.split()
    usual = [(f"--{flag}", value) for flag, value in USUAL[command].items() if f"no:{flag}" not in words]
    line = [*(word for pair in usual for word in pair), *(word for word in words if not word.startswith("no:"))]
    before = set(Path().rglob("*"))
    told = refusal(capsys, line, import_module(f"openrlhf_shear.cli.{command}").main)
    assert all(part in told for part in said.split(" | ")), told
    assert set(Path().rglob("*")) == before
