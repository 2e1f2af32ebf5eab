"""A start obeys TERM and Ctrl-C at any moment of it, and its last lines name the signal."""

import os
import signal
import sys
from pathlib import Path

import pytest

from openrlhf_shear.tasks.arithmetic.problems import write_dataset

from .conftest import ARITHMETIC_REWARD, POLICY
from .keeper import below
from .processes import wait_until

MOMENTS = {  # a line on the screen, or the name of a process
    "imports": "cli.train_ppo_ray",
    "the estimate of memory": "CPU profile",
    "preflight": "device: cpu",
    "GCS": "gcs_server",
    "raylet": "raylet/raylet",
    "Ray's agents": "ray::DashboardAgent",
    "placement": "placing and loading the models",
    "actors": "CPU backend",
    "models": "loading the models ...",
    "engines": "VLLM::EngineCore",
}
ALWAYS = ("GCS", "placement", "models")


def commands(root: int) -> dict[int, str]:
    """The command lines of all processes below one."""
    found = {}
    for pid in below(root):
        try:
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended
            continue
    return found


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        pytest.param(name, (signal.SIGTERM, signal.SIGINT)[i % 2], marks=[] if name in ALWAYS else pytest.mark.long)
        for i, name in enumerate(MOMENTS)
    ],
)
def test_a_start_obeys_a_signal(jobs, tmp_path, moment, number):
    write_dataset(tmp_path / "train.jsonl", 16, seed=0)
    words = ("--config", "cpu", "--actor.model_name_or_path", POLICY, "--reward.remote_url", ARITHMETIC_REWARD)
    data = (
        "--data.prompt_dataset",
        tmp_path / "train.jsonl",
        "--data.input_key",
        "prompt",
        "--data.label_key",
        "answer",
    )
    lengths = ("--data.max_len", 256, "--rollout.max_new_tokens", 160, "--algo.advantage.estimator", "shear")
    folders = ("--ckpt.path", tmp_path / "ckpt", "--ckpt.output_dir", tmp_path / "model")
    keeper = jobs.start(sys.executable, "-m", "openrlhf_shear.cli.train_ppo_ray", *words, *data, *lengths, *folders)
    sign = MOMENTS[moment]

    def there() -> bool:
        assert keeper.poll() is None, jobs.tails()
        return sign in jobs.last_log.read_text() or any(sign in line for line in commands(keeper.pid).values())

    wait_until(there, moment, pause=0.05)
    ours = [pid for pid, line in commands(keeper.pid).items() if "cli.train_ppo_ray" in line]
    for pid in ours[: 1 if number == signal.SIGTERM else None]:  # a terminal tells all of them
        os.kill(pid, number)
    done = jobs.finish(keeper)
    assert "Traceback" not in done.log
    if moment == "imports":  # Python's own end
        assert done.code == 128 + number
    else:
        assert done.code == 75 and signal.Signals(number).name in done.log
