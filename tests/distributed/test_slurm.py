"""A job through Slurm on this machine, which stands for two nodes."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from .processes import BIN, WAIT_SECONDS, Jobs, environment, free_ports, wait_until

SLURM = ("slurmctld", "slurmd", "sbatch", "munged")
PATHS = f"{BIN}:{os.environ['PATH']}:/usr/sbin"
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


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Variables with which `sbatch` finds a Slurm of two nodes, both of them this machine."""
    missing = [name for name in SLURM if shutil.which(name, path=PATHS) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: apt-get install slurm-wlm munge")
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons run as root")
    host = socket.gethostname().split(".")[0]
    jobs = Jobs(tmp_path_factory.mktemp("slurm"))
    with tempfile.TemporaryDirectory(prefix="slurm_", dir="/tmp") as name:
        folder = Path(name)
        (folder / "slurm.conf").write_text(CONFIGURATION.format(host=host, folder=folder, ports=free_ports(3)))
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o600)
        more = {"SLURM_CONF": str(folder / "slurm.conf"), "JOIN_SECONDS": f"{WAIT_SECONDS:g}"}
        variables = environment(PATH=PATHS, **more)
        munge = ["munged", "--foreground", "--force", f"--key-file={folder}/munge.key"]
        munge += [f"--{kind}={folder}/munge.{kind.split('-')[0]}" for kind in ("socket", "pid-file", "seed-file")]
        lines = [[*munge, f"--log-file={folder}/munge.log"], ["slurmctld", "-D"]]
        lines += [["slurmd", "-D", "-N", node] for node in ("one", "two")]
        try:
            for line in lines:
                jobs.start(*line, env=variables)
                time.sleep(1)
            wait_until(lambda: asked(variables, "sinfo", "--noheader", "--format=%D %t") == "2 idle", "Slurm is idle")
            yield variables
        finally:
            jobs.stop()


def asked(variables: dict[str, str], *words: str) -> str:
    return subprocess.run(words, env=variables, capture_output=True, text=True).stdout.strip()


def sbatch(project: Path, variables: dict[str, str], *words: str) -> tuple[int, int]:
    """The job of the last two `words` on both nodes: its exit code, and number; the job's log is job.log."""
    line = ["sbatch", "--parsable", "--nodes=2", "--gpus-per-node=0", "--output=job.log", *words[:-2]]
    line += ["examples/scripts/slurm.sbatch", *words[-2:]]
    done = subprocess.run(line, cwd=project, env=variables | {"LOGICAL_GPUS": "2"}, capture_output=True, text=True)
    return done.returncode, int(done.stdout)


def head_is_gone(number: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", 20000 + number % 1000 * 10)) != 0


@pytest.mark.parametrize("code", [0, 3])
def test_slurm_starts_ray_submits_and_cleans_up(slurm, project, code):
    ended, number = sbatch(project, slurm, "--wait", "./job.sh", str(code))
    log = (project / "job.log").read_text()
    assert ended == (code > 0), log
    assert "2 Ray nodes with 4 GPUs" in log and "nodes 2 GPUs 4.0" in log, log
    assert {path.name for path in (project / f"runs/slurm-{number}").iterdir()} == {"ray-one.log", "ray-two.log"}
    assert head_is_gone(number)


def test_slurm_ends_when_a_node_does_not_start(slurm, project):
    (project / "bin").mkdir()
    broken = project / "bin" / "ray"
    broken.write_text(f'#!/bin/sh\ncase " $* " in *" --address "*) exit 7;; esac\nexec {BIN}/ray "$@"\n')
    broken.chmod(0o755)
    ended, number = sbatch(project, slurm | {"PATH": f"{broken.parent}:{slurm['PATH']}"}, "--wait", "./job.sh", "0")
    log = (project / "job.log").read_text()
    assert ended == 1, log
    assert f"slurm.sbatch: Ray did not start on all of one two; see {project}/runs/slurm-" in log, log
    assert head_is_gone(number)


def test_a_cancelled_slurm_job_leaves_no_ray(slurm, project):
    (project / "job.sh").write_text("#!/bin/sh\necho it runs\nsleep infinity\n")
    _, number = sbatch(project, slurm, "./job.sh", "0")
    log = project / "job.log"
    wait_until(lambda: log.exists() and "\nit runs" in log.read_text(), "the job runs")
    assert not head_is_gone(number)
    asked(slurm, "scancel", str(number))
    wait_until(lambda: not asked(slurm, "squeue", "--noheader"), "the job is gone")
    assert head_is_gone(number)
