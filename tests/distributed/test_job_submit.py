"""Ray clusters as a user starts them: nodes that join, small jobs, and the launch line of a training.

The training has an actor and a reference rank with ZeRO-3, dynamic batching and packing, and an engine, in a placement
group. `make test-long` has two of each. The flags are spelled as in OpenRLHF 0.9. The credit rule is the documented
example of a user's rule, which only the job's working directory holds.
"""

import secrets
import shutil
import sys
import time

import pytest

from .conftest import ARITHMETIC_REWARD
from .processes import BIN, ROOT, WAIT_SECONDS, environment, free_ports, ray_head

EXAMPLE_RULE = ROOT / "examples" / "rules" / "surprise_rule.py"
WAIT_FOR_NODES = ROOT / "examples" / "scripts" / "wait_for_nodes.py"


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """A running Ray head with two logical GPUs, which accepts other machines that have the token."""
    words = ("--num-gpus", 2, "--num-cpus", 4, "--dashboard-host", "0.0.0.0")
    with ray_head(tmp_path_factory.mktemp("head"), *words, host="127.0.0.2", token=secrets.token_hex(32)) as started:
        yield started


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_ray_job_submit_trains_with_a_users_rule_and_saves(head, policy, jobs, tmp_path, ranks):
    from openrlhf_shear.evaluation.comparison.runs import read_curves
    from openrlhf_shear.tasks.arithmetic.problems import write_dataset

    project = tmp_path / "project"
    (project / "house").mkdir(parents=True)
    shutil.copy(EXAMPLE_RULE, project / "house" / "rules.py")

    write_dataset(tmp_path / "train.jsonl", 16, seed=0)
    write_dataset(tmp_path / "heldout.jsonl", 8, seed=1, split="heldout")
    done = jobs.run(
        *(BIN / "ray", "job", "submit", "--address", head.dashboard, "--working-dir", project, "--"),
        *(sys.executable, "-m", "openrlhf_shear.cli.train_ppo_ray", "--pretrain", policy),
        *("--advantage_estimator", "house.rules:SurpriseRule"),
        *("--init_kl_coef", "1e-3", "--ref_num_gpus_per_node", ranks),
        *("--remote_rm_url", ARITHMETIC_REWARD, "--label_key", "answer"),
        *("--prompt_data", tmp_path / "train.jsonl", "--input_key", "prompt", "--max_len", "256"),
        *("--eval_dataset", tmp_path / "heldout.jsonl", "--eval.before_train", "--eval_steps", "2"),
        *("--colocate_all_models", "--actor_num_gpus_per_node", ranks, "--vllm_num_engines", ranks),
        *(
            "--enforce_eager",
            "--zero_stage",
            "3",
            "--use_dynamic_batch",
            "--packing_samples",
            "--train_max_tokens_per_gpu",
            "2000",
        ),
        *("--rollout_batch_size", "8", "--n_samples_per_prompt", "4", "--micro_rollout_batch_size", "4"),
        *("--train_batch_size", "16", "--micro_train_batch_size", "4", "--actor_learning_rate", "1e-3"),
        *("--enable_vllm_is_correction", "--vllm_enable_sleep", "--deepspeed_enable_sleep"),
        *("--save_path", tmp_path / "checkpoint", "--ckpt_path", tmp_path / "ckpt", "--best_metric_key", "none"),
        *("--credit.dump_rollouts_every", "2"),
        *("--use_tensorboard", tmp_path / "tensorboard", "--wandb_run_name", "job"),
        env=head.variables,
    )
    assert done.code == 0 and "device: cpu" in done.log and "CPU backend" in done.log

    curves = read_curves(tmp_path / "tensorboard")
    assert [step for step, _ in curves["train/rollout/reward_mean"]] == [1, 2]
    assert [step for step, _ in curves["eval/eval_arithmetic_pass1"]] == [0, 2]
    assert all(0 < value < 1 for _, value in curves["train/surprise/credit_share"])
    assert all(1e-4 < value < 1 for _, value in curves["train/surprise/surprise"])
    assert all(0 <= value < 0.999 for _, value in curves["train/surprise/weight_min"])
    # stale engine weights would show here: the learning rate is high. Measured: below 0.01.
    assert all(abs(value) < 0.05 for _, value in curves["train/vllm_kl"])

    from openrlhf_shear.rollouts.record import read_rollouts

    rows, settings = read_rollouts(tmp_path / "ckpt" / "rollouts" / "step000002.parquet")
    assert (settings["rule"], settings["estimator"]) == ("surprise", "house.rules:SurpriseRule")
    assert [(row.group, row.sample) for row in rows] == [
        (str(group), sample) for group in range(8) for sample in range(4)
    ]
    for row in rows:
        assert len(row.tokens) == len(row.weights) == len(row.token_advantages) and row.span_starts is None
        assert all(0 <= weight <= 2 for weight in row.weights) and row.correct == (row.reward > 0.5)
        # 1e-3 of the KL from a token on is added to its advantage; the last token has its own alone, below a nat here
        assert row.token_advantages[-1] == pytest.approx(row.advantage * row.weights[-1], rel=1e-5, abs=1e-3)

    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint")
    assert model.config.model_type == "qwen2"
    assert AutoTokenizer.from_pretrained(tmp_path / "checkpoint").eos_token_id == model.config.eos_token_id


HOLD = """
import pathlib, ray, sys, time
ray.init(log_to_driver=False)
ray.get(ray.util.placement_group([{"GPU": 1}]).ready())
pathlib.Path(sys.argv[1], "holding").touch()
while not pathlib.Path(sys.argv[1], "release").exists():
    time.sleep(0.1)
"""
WAIT = """
import pathlib, sys
from openrlhf_shear.train.nodes import cluster
say = cluster.say
def release(text):
    say(text)
    pathlib.Path(sys.argv[1], "release").touch()
cluster.say = release
cluster.join(2)
print("joined")
"""


def test_gpus_that_another_job_holds_are_waited_for_aloud(head, jobs, tmp_path):
    there = head.variables | {"RAY_ADDRESS": head.address}
    holder = jobs.start(sys.executable, "-c", HOLD, tmp_path, env=there)
    deadline = time.monotonic() + WAIT_SECONDS
    while not (tmp_path / "holding").exists():
        assert holder.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    waited = jobs.run(sys.executable, "-c", WAIT, tmp_path, env=there)
    told = "waiting for free GPUs: 2 are needed, 1 of 2 are free"
    assert waited.code == 0 and told in waited.log and waited.log.endswith("joined\n")


def test_nodes_join_and_a_job_is_submitted(head, jobs, project, tmp_path):
    joined = [sys.executable, WAIT_FOR_NODES, head.address]
    there = jobs.run(*joined, "1", WAIT_SECONDS, head.dashboard, env=head.variables)
    assert "1 Ray nodes with 2 GPUs" in there.log
    missing = jobs.run(*joined, "2", "1", env=head.variables)
    assert missing.code == 1
    assert f"2 nodes must have joined {head.address} after 1 s: got 1, " in missing.log
    node = jobs.start(
        *(BIN / "ray", "start", "--block", "--disable-usage-stats", "--address", head.address),
        *("--num-gpus", 1, "--num-cpus", 2, "--node-ip-address", "127.0.0.3"),
        env=head.variables,
    )
    assert "2 Ray nodes with 3 GPUs" in jobs.run(*joined, "2", WAIT_SECONDS, env=head.variables).log
    assert node.poll() is None

    submit = project / "examples/scripts/submit.sh"
    asked = {"RAY_API_SERVER_ADDRESS": head.dashboard, "DATA": "data", "GPUS": "2"}
    variables = head.variables | asked
    good = jobs.run(submit, "./job.sh", "0", "a b", cwd=tmp_path, env=variables)
    assert good.code == 0
    assert "nodes 2 GPUs 3.0" in good.log and f"DATA {tmp_path}/data GPUS 2 words 0 a b" in good.log
    assert jobs.run(submit, "./job.sh", "3", cwd=tmp_path, env=variables).code == 1
    stranger = jobs.run(submit, "./job.sh", "0", cwd=tmp_path, env=environment(**asked))
    assert stranger.code != 0 and "RAY_AUTH_TOKEN" in stranger.log and "words" not in stranger.log


def test_no_head_is_told(jobs):
    told = jobs.run(sys.executable, WAIT_FOR_NODES, f"127.0.0.1:{free_ports(1)[0]}", "1", "0")
    assert told.code == 1 and "no Ray head at 127.0.0.1:" in told.log
