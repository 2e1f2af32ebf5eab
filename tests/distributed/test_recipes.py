"""Recipes and launch scripts, run: a smoke of each family, nodes that join, `ray job submit`, Slurm on this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "scripts"
BIN = Path(sys.executable).parent
JOB = """\
#!/usr/bin/env bash
set -euo pipefail
python -c '
import ray
ray.init(log_to_driver=False)
print("nodes", len(ray.nodes()), "GPUs", ray.cluster_resources()["GPU"])'
echo "DATA $DATA GPUS ${GPUS-} words $*"
exit "$1"
"""


def environment(**more: str) -> dict[str, str]:
    """This process's, without the Ray it may be part of, and with this Python in front."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return kept | {"PATH": f"{BIN}:{os.environ['PATH']}"} | more


def run(*words: str | Path, timeout: float = 540, **options) -> subprocess.CompletedProcess:
    options.setdefault("env", environment())
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=timeout, **options)


def free_ports(n: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def stop(processes: list[subprocess.Popen]) -> None:
    for process in reversed(processes):
        process.send_signal(signal.SIGTERM)
    for process in processes:
        process.wait(timeout=60)


METRICS = {  # of each method, with a range that a step must lie in; a step of two groups may have no mixed one
    "shear": {"shear/mixed_groups": (0, 1)},
    "entropy_adv": {"entropy_adv/entropy": (1e-4, 4), "entropy_adv/bonus": (0, 1), "entropy_adv/capped": (0, 1)},
    "prm_reshape": {"prm_reshape/weight_max": (0, 1), "prm/steps_per_rollout": (4, 12), "prm/score_mean": (0, 1)},
    "pure": {"pure/worst_step": (0, 1), "prm/steps_per_rollout": (4, 12), "prm/truncated_rollouts": (0, 0)},
}


@pytest.mark.parametrize(
    ("method", "model", "task"),
    [
        ("shear", "qwen2.5-math-7b", "math"),
        ("grpo", "qwen2.5-coder-7b", "code"),
        ("entropy_adv", "llama3.1-8b", "math"),
        ("prm_reshape", "qwen2.5-14b", "math"),
        ("pure", "qwen2.5-math-7b", "math"),
    ],
)
def test_a_recipe_smokes(tmp_path, method, model, task):
    if task == "code":
        from openrlhf_shear.rewards.jail import JailError, find_jail

        try:
            find_jail()
        except JailError as error:
            pytest.skip(f"no jail: {error}")
    done = run(
        *(SCRIPTS / "paper" / "run.sh", method, model, task, "--smoke", "--seed", "1", "--group", "4"),
        env=environment(RUNS=str(tmp_path), RAY_ADDRESS="local"),
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    folder = tmp_path / f"{method}-{model}-{task}-g4-seed1-smoke"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 2
    assert summary["heldout_before"] is not None and summary["heldout_after"] is not None
    assert (summary["credit_share"] is not None) == (method not in ("grpo", "entropy_adv"))
    assert (folder / "checkpoint" / "config.json").is_file()
    (events,) = (folder / "tensorboard").rglob("events.out.tfevents.*")
    scalars = EventAccumulator(str(events), size_guidance={"scalars": 0}).Reload()
    for name, (low, high) in METRICS.get(method, {}).items():
        values = [event.value for event in scalars.Scalars(f"train/{name}")]
        assert len(values) == 2 and all(low <= value <= high for value in values), (name, values)


@pytest.fixture
def ray_node():
    """A function: words of `ray start` -> that node, running until the test ends. Its files have a short path."""
    started = []
    with tempfile.TemporaryDirectory(prefix="ray_", dir="/tmp") as folder:

        def start(*words: str | int) -> subprocess.Popen:
            line = [BIN / "ray", "start", "--block", "--disable-usage-stats", "--num-cpus", 2, *words]
            line += ["--temp-dir", folder] if "--head" in words else []
            started.append(subprocess.Popen([str(word) for word in line], env=environment()))
            return started[-1]

        yield start
        stop(started)


def test_nodes_join_and_a_job_is_submitted(ray_node, tmp_path):
    gcs, dashboard, agent, client = free_ports(4)
    address = f"127.0.0.1:{gcs}"
    ray_node(
        *("--head", "--node-ip-address", "127.0.0.1", "--port", gcs, "--dashboard-port", dashboard, "--num-gpus", 2),
        *("--dashboard-agent-listen-port", agent, "--ray-client-server-port", client),
    )
    joined = [sys.executable, SCRIPTS / "wait_for_nodes.py", address]
    first = run(*joined, "1", "200")
    assert "1 Ray nodes with 2 GPUs" in first.stdout, first.stderr
    missing = run(*joined, "2", "1")
    assert missing.returncode == 1
    assert f"2 nodes must have joined {address} after 1 s: got 1, " in missing.stderr
    ray_node("--address", address, "--num-gpus", 1)
    assert "2 Ray nodes with 3 GPUs" in run(*joined, "2", "200").stdout

    project = write_project(tmp_path)
    where = environment(RAY_API_SERVER_ADDRESS=f"http://127.0.0.1:{dashboard}", DATA="data", GPUS="2")
    good = run(project / "examples/scripts/submit.sh", "./job.sh", "0", "a b", cwd=tmp_path, env=where)
    assert good.returncode == 0, good.stdout + good.stderr
    assert "nodes 2 GPUs 3.0" in good.stdout
    assert f"DATA {tmp_path}/data GPUS 2 words 0 a b" in good.stdout
    bad = run(project / "examples/scripts/submit.sh", "./job.sh", "3", cwd=tmp_path, env=where)
    assert bad.returncode == 1, bad.stdout + bad.stderr


def test_no_head_is_told():
    told = run(sys.executable, SCRIPTS / "wait_for_nodes.py", f"127.0.0.1:{free_ports(1)[0]}", "1", "0")
    assert told.returncode == 1
    assert "no Ray head at 127.0.0.1:" in told.stderr


def write_project(folder: Path) -> Path:
    """A checkout with the launch scripts and JOB as job.sh, small enough to be sent along in no time."""
    project = folder / "project"
    shutil.copytree(SCRIPTS, project / "examples" / "scripts")
    (project / "job.sh").write_text(JOB)
    (project / "job.sh").chmod(0o755)
    return project


# ── Slurm ──

SLURM = ("slurmctld", "slurmd", "sbatch", "munged")
MISSING = [name for name in SLURM if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPort={ports[0]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]}
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]}
PartitionName=main Nodes=one,two Default=YES State=UP
"""


@pytest.fixture
def slurm():
    """Variables with which `sbatch` finds a Slurm of two nodes, both of them this machine."""
    host = socket.gethostname().split(".")[0]
    paths = environment(PATH=f"{BIN}:{os.environ['PATH']}:/usr/sbin")
    with tempfile.TemporaryDirectory(prefix="slurm_", dir="/tmp") as name:
        folder = Path(name)
        (folder / "slurm.conf").write_text(CONFIGURATION.format(host=host, folder=folder, ports=free_ports(3)))
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o600)
        variables = paths | {"SLURM_CONF": str(folder / "slurm.conf")}
        munge = ["munged", "--foreground", "--force", f"--key-file={folder}/munge.key"]
        munge += [f"--{kind}={folder}/munge.{kind.split('-')[0]}" for kind in ("socket", "pid-file", "seed-file")]
        lines = [[*munge, f"--log-file={folder}/munge.log"], ["slurmctld", "-D"]]
        lines += [["slurmd", "-D", "-N", node] for node in ("one", "two")]
        daemons = []
        try:
            with (folder / "daemons.log").open("w") as log:
                for line in lines:
                    daemons.append(subprocess.Popen(line, env=variables, stdout=log, stderr=log))
                    time.sleep(1)
            for _ in range(60):
                if run("sinfo", "--noheader", "--format=%D %t", env=variables).stdout.strip() == "2 idle":
                    break
                time.sleep(1)
            else:
                pytest.fail((folder / "daemons.log").read_text()[-3000:])
            yield variables
        finally:
            stop(daemons)


def needs_slurm(test: Callable) -> Callable:
    missing = pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)}: apt-get install slurm-wlm munge")
    return missing(pytest.mark.skipif(os.geteuid() != 0, reason="Slurm's daemons run as root")(test))


def sbatch(project: Path, variables: dict[str, str], *words: str) -> subprocess.CompletedProcess:
    """The job of `words` on both nodes, or what `sbatch` said; the job's log is job.log."""
    return run(
        *("sbatch", "--parsable", "--nodes=2", "--gpus-per-node=0", "--output=job.log", *words[:-2]),
        *("examples/scripts/slurm.sbatch", *words[-2:]),
        cwd=project,
        env=variables | {"LOGICAL_GPUS": "2"},
    )


def head_is_gone(number: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", 20000 + number % 1000 * 10)) != 0


@needs_slurm
@pytest.mark.parametrize("code", [0, 3])
def test_slurm_starts_ray_submits_and_cleans_up(slurm, tmp_path, code):
    project = write_project(tmp_path)
    done = sbatch(project, slurm, "--wait", "./job.sh", str(code))
    log = (project / "job.log").read_text()
    assert done.returncode == (code > 0), log
    assert "2 Ray nodes with 4 GPUs" in log and "nodes 2 GPUs 4.0" in log, log
    number = int(done.stdout)
    assert {path.name for path in (project / f"runs/slurm-{number}").iterdir()} == {"ray-one.log", "ray-two.log"}
    assert head_is_gone(number)


@needs_slurm
def test_slurm_ends_when_a_node_does_not_start(slurm, tmp_path):
    project = write_project(tmp_path)
    (project / "bin").mkdir()
    broken = project / "bin" / "ray"
    broken.write_text(f'#!/bin/sh\ncase " $* " in *" --address "*) exit 7;; esac\nexec {BIN}/ray "$@"\n')
    broken.chmod(0o755)
    done = sbatch(project, slurm | {"PATH": f"{broken.parent}:{slurm['PATH']}"}, "--wait", "./job.sh", "0")
    log = (project / "job.log").read_text()
    assert done.returncode == 1, log
    assert f"slurm.sbatch: Ray did not start on all of one two; see {project}/runs/slurm-" in log, log
    assert head_is_gone(int(done.stdout))


@needs_slurm
def test_a_cancelled_slurm_job_leaves_no_ray(slurm, tmp_path):
    project = write_project(tmp_path)
    (project / "job.sh").write_text("#!/bin/sh\necho it runs\nsleep 600\n")
    number = int(sbatch(project, slurm, "./job.sh", "0").stdout)
    log = project / "job.log"
    wait_until(lambda: log.exists() and "\nit runs" in log.read_text())
    assert not head_is_gone(number)
    run("scancel", str(number), env=slurm)
    wait_until(lambda: not run("squeue", "--noheader", env=slurm).stdout.strip())
    assert head_is_gone(number)


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(200):
        if condition():
            return
        time.sleep(1)
    pytest.fail("it did not happen in 200 s")
