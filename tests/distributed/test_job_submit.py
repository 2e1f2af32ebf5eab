"""The launch line of a cluster user, against a running cluster: `ray job submit -- python -m openrlhf_shear...`.

Two actor and two reference ranks with ZeRO-3, dynamic batching and packing, and two engines, in one placement group;
flags in the spelling of OpenRLHF 0.9; and a credit rule of the user's own, the documented example, that only the job's
working directory holds.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
EXAMPLE_RULE = Path(__file__).parents[2] / "examples" / "rules" / "surprise_rule.py"


def free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@pytest.fixture
def running_cluster():
    """The dashboard address of a Ray cluster on this machine with two logical GPUs, started as a user would."""
    gcs, dashboard, client, agent = free_ports(4)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with tempfile.TemporaryDirectory(prefix="ray_", dir="/tmp") as folder:
        head = subprocess.Popen(
            [
                *(BIN / "ray", "start", "--head", "--block", "--num-gpus", "2", "--num-cpus", "4"),
                *("--port", str(gcs), "--dashboard-port", str(dashboard), "--ray-client-server-port", str(client)),
                *("--dashboard-agent-listen-port", str(agent), "--temp-dir", folder, "--disable-usage-stats"),
            ],
            env=environment,
        )
        address = f"http://127.0.0.1:{dashboard}"
        try:
            for _ in range(120):
                try:
                    urllib.request.urlopen(f"{address}/api/version", timeout=2)
                    break
                except OSError:
                    assert head.poll() is None, "the Ray head ended"
                    time.sleep(1)
            else:
                pytest.fail("the Ray dashboard did not come up")
            yield address
        finally:
            head.terminate()
            head.wait(timeout=60)


def test_ray_job_submit_trains_with_a_users_rule_and_saves(running_cluster, policy, tmp_path):
    from openrlhf_shear.arithmetic.problems import write_dataset
    from openrlhf_shear.evaluation.run_summary import read_run

    project = tmp_path / "project"
    (project / "house").mkdir(parents=True)
    shutil.copy(EXAMPLE_RULE, project / "house" / "rules.py")

    write_dataset(tmp_path / "train.jsonl", 16, seed=0)
    write_dataset(tmp_path / "heldout.jsonl", 8, seed=1, split="heldout")
    command = [
        *(BIN / "ray", "job", "submit", "--address", running_cluster, "--working-dir", project, "--"),
        *(sys.executable, "-m", "openrlhf_shear.cli.train_ppo_ray", "--pretrain", policy),
        *("--advantage_estimator", "house.rules:SurpriseRule"),
        *("--init_kl_coef", "1e-3", "--ref_num_gpus_per_node", "2"),
        *("--remote_rm_url", policy.parents[1] / "rewards" / "arithmetic.py", "--label_key", "answer"),
        *("--prompt_data", tmp_path / "train.jsonl", "--input_key", "prompt", "--max_len", "256"),
        *("--eval_dataset", tmp_path / "heldout.jsonl", "--eval.before_train", "--eval_steps", "2"),
        *("--colocate_all_models", "--actor_num_gpus_per_node", "2", "--vllm_num_engines", "2", "--enforce_eager"),
        *("--zero_stage", "3", "--use_dynamic_batch", "--packing_samples", "--train_max_tokens_per_gpu", "2000"),
        *("--rollout_batch_size", "8", "--n_samples_per_prompt", "4", "--micro_rollout_batch_size", "4"),
        *("--train_batch_size", "16", "--micro_train_batch_size", "4", "--actor_learning_rate", "1e-3"),
        *("--enable_vllm_is_correction", "--vllm_enable_sleep", "--deepspeed_enable_sleep"),
        *("--save_path", tmp_path / "checkpoint", "--ckpt_path", tmp_path / "ckpt", "--best_metric_key", "none"),
        *("--shear.dump_rollouts_every", "2"),
        *("--use_tensorboard", tmp_path / "tensorboard", "--wandb_run_name", "job"),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    job = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True, timeout=540)
    log = job.stdout + job.stderr
    assert job.returncode == 0, log[-6000:]
    assert "device: cpu" in log and "CPU backend" in log

    summary = read_run(tmp_path / "tensorboard")
    assert summary.steps == 2
    assert summary.heldout_before is not None and summary.heldout_after is not None
    assert summary.credit_share is not None and 0 < summary.credit_share < 1
    assert all(1e-4 < value < 1 for _, value in summary.curves["train/surprise/surprise"])
    assert all(0 <= value < 0.999 for _, value in summary.curves["train/surprise/weight_min"])
    # stale engine weights would show here: the learning rate is high. Measured: below 0.01.
    assert all(abs(value) < 0.05 for _, value in summary.curves["train/vllm_kl"])

    from openrlhf_shear.rollouts.record import read_rollouts

    rows, settings = read_rollouts(tmp_path / "ckpt" / "rollouts" / "step000002.parquet")
    assert (settings["rule"], settings["estimator"]) == ("surprise", "house.rules:SurpriseRule")
    assert [(row.group, row.sample) for row in rows] == [
        (str(group), sample) for group in range(8) for sample in range(4)
    ]
    for row in rows:
        assert len(row.tokens) == len(row.weights) == len(row.token_advantages) and row.span_starts is None
        assert all(0 <= weight <= 2 for weight in row.weights) and row.correct == (row.reward > 0.5)
        # the KL of all later tokens is in an advantage here; the last token's own is in both
        assert row.token_advantages[-1] == pytest.approx(row.advantage * row.weights[-1], rel=1e-5, abs=1e-6)

    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint")
    assert model.config.model_type == "qwen2"
    assert AutoTokenizer.from_pretrained(tmp_path / "checkpoint").eos_token_id == model.config.eos_token_id
