"""What would run out is refused by its name before anything starts: disks, Ray's temporary folder, `ulimit -u`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from command_lines import ROOT, refusal, write_checkpoint

from openrlhf_shear.cli.train_ppo_ray import read
from openrlhf_shear.doctor import machine
from openrlhf_shear.memory.model_shape import checkpoint_bytes, model_bytes
from openrlhf_shear.preflight import memory, resources
from openrlhf_shear.rewards import limits

FOLDERS = "--device cpu --ckpt.path run/ckpt --ckpt.output_dir run/model"
SAVES = f"{FOLDERS} --ckpt.save_steps 1"
NOBODY = (
    *("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all,+dac_override"),
    *("--ambient-caps=-all,+dac_override", "--bounding-set=-all,+dac_override"),
)
LIMIT = "from openrlhf_shear.rewards import limits\nprint(limits.process_limit(), limits.tasks_of_user())"


@pytest.fixture
def sized(job, monkeypatch):
    """A function: write a model that has `share` times as many parameters as this disk has free bytes; return them.

    There is memory for it.
    """
    monkeypatch.setattr(memory, "free_memory", lambda: (1 << 50, 1 << 50))

    def write(share: float) -> int:
        wanted = int(share * shutil.disk_usage(".").free)
        config = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 1, "num_attention_heads": 8}
        config |= {"intermediate_size": 1024, "vocab_size": wanted // 1024, "tie_word_embeddings": True}
        Path("model", "config.json").write_text(json.dumps(config))
        return wanted

    return write


@pytest.fixture(autouse=True)
def own_ray(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_the_bytes_of_a_checkpoint():
    """14 a parameter that learns, 2 a frozen parameter; 4 more each that learns for a moving average."""
    assert (model_bytes(10), checkpoint_bytes(10), checkpoint_bytes(10, 9), checkpoint_bytes(10, averaged=True)) == (
        *(20, 140, 32, 180),
    )


def test_a_disk_without_room_for_the_model_is_refused(job, sized, capsys):
    sized(0.7)  # 1.4 of the free bytes
    told = refusal(capsys, job(FOLDERS))
    assert "error: ckpt.output_dir needs " in told and " GB for the model; its disk has " in told
    assert told.endswith("got 'run/model'; use a disk with room, or make room")


def test_a_disk_without_room_for_model_and_checkpoint_is_refused(job, sized, capsys):
    sized(0.065)  # 0.91 in a checkpoint, 0.13 in the model
    assert " GB for the model, and " in (told := refusal(capsys, job(SAVES)))
    assert " for a checkpoint (--ckpt.path); its disk has " in told
    read(job(FOLDERS))
    read(job(f"{SAVES} --ckpt.disable_ds"))


def test_a_resume_needs_no_room_for_what_is_there(job, sized, capsys):
    sized(0.065)
    write_checkpoint(Path("run/ckpt/_actor"), "global_step1")
    read(job(f"{SAVES} --ckpt.load_enable"))
    sized(0.7)
    assert "GB for the model; its disk" in refusal(capsys, job(f"{SAVES} --ckpt.load_enable"))
    Path("run/model").mkdir()
    with Path("run/model/model.safetensors").open("wb") as file:
        file.truncate(3 * shutil.disk_usage(".").free)  # a hole: it takes no room
    read(job(f"{SAVES} --ckpt.load_enable"))


def test_fewer_checkpoints_than_asked_are_told(job, sized, capsys):
    sized(0.04)  # a checkpoint takes 0.56 of the free bytes
    read(job(SAVES))
    told = capsys.readouterr().err
    assert "[Warning] the disk of --ckpt.path has room for checkpoints of " in told
    assert " GB: 1; --ckpt.max_num 3 needs 4, as a run deletes the oldest after a save" in told
    read(job(f"{SAVES} --ckpt.max_num 1"))
    assert ": 1; --ckpt.max_num 1 needs 2" in capsys.readouterr().err
    read(job(f"{SAVES} --ckpt.max_num 1 --eval.dataset prompts.jsonl"))
    assert (
        ": 1; --ckpt.max_num 1 needs 3, as a run deletes the oldest after a save and keeps" in capsys.readouterr().err
    )
    read(job(f"{SAVES} --ckpt.max_num 1 --eval.dataset prompts.jsonl --ckpt.best_weights_only"))
    assert ": 1; --ckpt.max_num 1 needs 2" in capsys.readouterr().err
    sized(0.001)
    read(job(SAVES))
    assert "has room for checkpoints" not in capsys.readouterr().err


@pytest.mark.parametrize("elsewhere", ["a cluster", "a plan"])
def test_disks_of_other_machines_are_not_looked_at(job, sized, monkeypatch, elsewhere):
    sized(0.7)
    planned = read(job(f"{FOLDERS} --device_memory 1e9 --dry_run"))
    assert not list(resources.disks(planned.run, planned.models))
    run = planned.run.with_flags({"device_memory": 0.0})
    assert list(resources.disks(run, planned.models))
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert not list(resources.disks(run, planned.models)) and not list(resources.temporary_folder(run))


@pytest.mark.parametrize("variable", ["RAY_TMPDIR", "TMPDIR"])
def test_a_full_temporary_folder_is_refused_by_its_variable(job, capsys, monkeypatch, tmp_path, variable):
    monkeypatch.setattr(resources, "TEMPORARY", 10**18)  # more than any disk has
    for name in ("RAY_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "/tmp")
    told = refusal(capsys, job())
    assert f"error: {variable} names the folder of Ray's sessions, which needs 1000000000000 MB and has " in told
    assert "got /tmp; use make room there" in told


def test_a_limit_of_processes_is_refused_by_its_name(job, capsys, monkeypatch):
    monkeypatch.setattr(resources, "process_limit", lambda: limits.tasks_of_user() + 100)
    told = refusal(capsys, job())
    assert "error: ulimit -u must leave 400 processes and threads to Ray and vLLM; " in told
    assert told.endswith("use ulimit -u unlimited before the run")
    monkeypatch.setattr(resources, "process_limit", lambda: limits.tasks_of_user() + 1000)
    read(job())


def test_a_machine_without_loopback_or_proc_and_a_limit_of_files_are_refused(job, capsys, monkeypatch):
    monkeypatch.setattr(resources.socket, "create_server", Mock(side_effect=OSError(99, "Cannot assign address")))
    of_files = resources.resource.RLIMIT_FSIZE
    monkeypatch.setattr(resources.resource, "getrlimit", lambda which: (2**20 if which == of_files else -1, -1))
    told = refusal(capsys, job(""))
    assert "127.0.0.1 must take connections" in told and "use ip link set lo up" in told
    assert "ulimit -f must let a file have 4 GiB" in told and "got 1024 KiB; use ulimit -f unlimited" in told
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path != "/proc/self/status" and exists(path))
    assert "/proc: it must be mounted" in refusal(capsys, job(""))


def test_the_limit_counts_for_users_and_not_for_root():
    words = NOBODY if os.geteuid() == 0 else ()
    command = [*words, "prlimit", "--nproc=5000:5000", sys.executable, "-c", LIMIT]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    limit, running = done.stdout.split()
    assert limit == "5000" and 1 <= int(running) < 5000
    if os.geteuid() == 0:
        assert limits.process_limit() is None and limits.tasks_of_user() > 1


def test_the_doctor_names_the_limit_of_processes(monkeypatch):
    monkeypatch.setattr(machine, "process_limit", lambda: None)
    assert machine.processes().status == "ok"
    for more, status in ((100, "fail"), (1000, "warn"), (10_000, "ok")):
        monkeypatch.setattr(machine, "process_limit", lambda more=more: limits.tasks_of_user() + more)
        assert machine.processes().status == status
