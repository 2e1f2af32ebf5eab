"""Jobs through Slurm on this machine, which stands for two nodes with two addresses. Neither is 127.0.0.1, where the
head's dashboard listens.
"""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from .conftest import ARITHMETIC_REWARD, COMMON
from .processes import BIN, PATIENCE, ROOT, WAIT_SECONDS, Jobs, environment, free_ports, wait_until

SLURM = ("slurmctld", "slurmd", "sbatch", "munged")
PATHS = f"{BIN}:{os.environ['PATH']}:/usr/sbin"
CONFIGURATION = (ROOT / "tests" / "data" / "slurm.conf").read_text()


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
    """What a command of Slurm prints. It is asked again until it succeeds, as a busy Slurm does not always answer."""
    done = []

    def succeeds() -> bool:
        done.append(subprocess.run(words, env=variables, capture_output=True, text=True))
        return done[-1].returncode == 0

    wait_until(succeeds, " ".join(words))
    return done[-1].stdout.strip()


def sbatch(project: Path, variables: dict[str, str], *words: str) -> tuple[int, int]:
    """The job of the last two `words` on both nodes: its exit code, and number; the job's log is job.log."""
    line = ["sbatch", "--parsable", "--nodes=2", "--gpus-per-node=0", "--output=job.log", *words[:-2]]
    line += ["examples/scripts/slurm.sbatch", *words[-2:]]
    done = subprocess.run(line, cwd=project, env=variables | {"LOGICAL_GPUS": "2"}, capture_output=True, text=True)
    return done.returncode, int(done.stdout)


def logs_of(project: Path, number: int) -> Path:
    return project / f"runs/slurm-{number}"


def is_over(project: Path, number: int) -> bool:
    """Whether the job's Ray head has ended and its token is deleted."""
    host, port = re.findall(r"--address='([\d.]+):(\d+)'", (logs_of(project, number) / "ray-one.log").read_text())[-1]
    assert host == "127.0.0.2"
    with socket.socket() as s:
        gone = s.connect_ex((host, int(port))) != 0
    return gone and not (logs_of(project, number) / "ray-token").exists()


def shim(project: Path, slurm: dict[str, str], script: str, command: str = "ray") -> dict[str, str]:
    """Variables with which `command` is the test's script; $REAL is the real command."""
    folder = project / "bin"
    folder.mkdir()
    (folder / command).write_text(f"#!/bin/bash\nREAL={shutil.which(command, path=PATHS)}\n{script}\n")
    (folder / command).chmod(0o755)
    return slurm | {"PATH": f"{folder}:{slurm['PATH']}"}


def test_slurm_starts_ray_submits_a_job_that_fails_and_cleans_up(slurm, project):
    ended, number = sbatch(project, slurm, "--wait", "./job.sh", "3")
    log = (project / "job.log").read_text()
    assert ended == 1, log
    assert "2 Ray nodes with 4 GPUs" in log and "nodes 2 GPUs 4.0" in log, log
    assert {path.name for path in logs_of(project, number).iterdir()} == {"ray-one.log", "ray-two.log"}
    assert is_over(project, number)


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("exit 7", "slurm.sbatch: Ray did not start on all of one two; see {logs}"),
        ("exec sleep infinity", r"2 nodes must have joined 127.0.0.2:\d+ after [\d.]+ s: got 1, "),
    ],
)
def test_slurm_ends_when_a_node_does_not_start_or_join(slurm, project, does, said):
    broken = shim(project, slurm, f'case " $* " in *" --address "*) {does};; esac\nexec $REAL "$@"')
    ended, number = sbatch(project, broken | {"JOIN_SECONDS": f"{45 * PATIENCE:g}"}, "--wait", "./job.sh", "0")
    log = (project / "job.log").read_text()
    assert ended == 1 and re.search(said.replace("{logs}", str(logs_of(project, number))), log), log
    assert is_over(project, number)


def test_slurm_waits_for_a_slow_dashboard(slurm, project):
    """The port is open, and no server answers there for 20 seconds."""
    stop = 'pkill -STOP -f "dashboard.py.*--port=$port" && sleep 20 && pkill -CONT -f "dashboard.py.*--port=$port"'
    slow = shim(
        project,
        slurm,
        f"""case " $* " in *" --head "*) port=$(grep -oP -- '--dashboard-port \\K\\d+' <<<"$*")
        (until (exec 3<>/dev/tcp/127.0.0.1/$port) 2>/dev/null; do sleep 0.1; done; sleep 3; {stop}) & ;;
        esac
        exec $REAL "$@\"""",
    )
    ended, _ = sbatch(project, slow, "--wait", "./job.sh", "0")
    log = (project / "job.log").read_text()
    assert ended == 0 and "nodes 2 GPUs 4.0" in log, log


def test_nobody_without_the_token_uses_the_cluster_and_a_cancelled_job_leaves_none(slurm, project, jobs):
    (project / "job.sh").write_text("#!/bin/sh\necho it runs\nsleep infinity\n")
    _, number = sbatch(project, slurm, "./job.sh", "0")
    wait_for_line(project / "job.log", "it runs")
    assert not is_over(project, number)
    token = logs_of(project, number) / "ray-token"
    assert token.stat().st_mode & 0o077 == 0
    (address,) = set(re.findall(r"--address='([\d.:]+)'", (logs_of(project, number) / "ray-one.log").read_text()))
    ask = f"import ray; ray.init('{address}', log_to_driver=False); print(ray.cluster_resources())"
    wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    for variables in ({}, wrong):
        refused = jobs.run(BIN / "python", "-c", ask, env=environment(**variables))
        assert refused.code != 0 and "GPU" not in refused.log, refused.log
    right = environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token))
    assert "'GPU': 4.0" in jobs.run(BIN / "python", "-c", ask, env=right).log
    asked(slurm, "scancel", str(number))
    wait_until(lambda: not asked(slurm, "squeue", "--noheader"), "the job is gone")
    assert is_over(project, number)


def wait_for_line(log: Path, line: str) -> None:
    wait_until(lambda: log.exists() and f"\n{line}" in log.read_text(), f"{log.name} says {line!r}")


@pytest.fixture
def training(project) -> Path:
    """Write the project's job.sh, which trains for 32 steps; return the folder of its checkpoints."""
    from openrlhf_shear.tasks.arithmetic.problems import write_dataset

    write_dataset(project / "train.jsonl", 256, seed=0)
    line = [sys.executable, "-m", "openrlhf_shear.cli.train_ppo_ray", *COMMON, "--reward.remote_url"]
    line += [str(ARITHMETIC_REWARD), "--data.prompt_dataset", f"{project}/train.jsonl", "--train.colocate_all"]
    line += ["--rollout.batch_size", "8", "--rollout.micro_batch_size", "8", "--train.batch_size", "16"]
    line += ["--train.micro_batch_size", "8", "--ckpt.path", f"{project}/ckpt", "--ckpt.save_steps", "100"]
    line += ["--ckpt.output_dir", f"{project}/model", "--ckpt.load_enable", "--train.max_restarts", "1"]
    (project / "job.sh").write_text(f"#!/bin/bash\nexec {shlex.join(line)}\n")
    return project / "ckpt" / "_actor"


def in_its_second_step(log: Path) -> None:
    wait_until(lambda: log.exists() and "Global step 2:" in log.read_text(), "the second step", pause=0.1)


def test_a_training_that_runs_out_of_time_saves_and_goes_on_when_it_is_queued_again(slurm, project, training):
    """A busy Slurm refuses at first to queue it."""
    refuse = "echo a busy Slurm >&2; exit 1"
    busy = f'if [ "$1" = requeue ] && mkdir {project}/refused 2>/dev/null; then {refuse}; fi\nexec $REAL "$@"'
    _, number = sbatch(project, shim(project, slurm, busy, "scontrol"), "./job.sh", "0")
    log = project / "job.log"
    in_its_second_step(log)
    asked(slurm, "scancel", "--batch", "--signal=USR1", str(number))
    wait_until(lambda: not asked(slurm, "squeue", "--noheader"), "the job has ended for good")
    text = log.read_text()
    assert "slurm.sbatch: the job is queued again\na busy Slurm\n" in text, text
    (saved,) = re.findall(r"stopped by SIGTERM after step (\d+)", text)
    assert f"resuming after step {saved}:" in text, text
    assert [int(step) for step in re.findall(r"Global step (\d+):", text)] == list(range(1, 33)), text
    assert (project / "model" / "config.json").exists() and is_over(project, number)


def test_a_training_whose_script_gets_sigterm_saves_and_ends(slurm, project, training):
    _, number = sbatch(project, slurm, "./job.sh", "0")
    in_its_second_step(project / "job.log")
    asked(slurm, "scancel", "--batch", "--signal=TERM", str(number))
    wait_until(lambda: not asked(slurm, "squeue", "--noheader"), "the job has ended")
    text = (project / "job.log").read_text()
    (saved,) = re.findall(r"stopped by SIGTERM after step (\d+)", text)
    assert (training / f"global_step{saved}" / "complete.json").exists() and "queued again" not in text, text
    assert is_over(project, number)


@pytest.mark.parametrize("words", [(), ("--full", "--signal=USR1")], ids=["TERM", "USR1"])
def test_a_training_with_a_private_ray_saves_when_slurm_signals_all_its_processes(slurm, project, training, words):
    """`scancel` sends SIGTERM to every process of a job, and SIGKILL after KillWait, 30 s."""
    done = ["sbatch", "--parsable", "--output=job.log", "job.sh"]
    number = subprocess.run(done, cwd=project, env=slurm, capture_output=True, text=True, check=True).stdout.strip()
    in_its_second_step(project / "job.log")
    asked(slurm, "scancel", *words, number)
    wait_until(lambda: not asked(slurm, "squeue", "--noheader"), "the job has ended")
    text = (project / "job.log").read_text()
    (saved,) = re.findall(rf"stopped by SIG{'USR1' if words else 'TERM'} after step (\d+)", text)
    assert (training / f"global_step{saved}" / "complete.json").exists(), text
