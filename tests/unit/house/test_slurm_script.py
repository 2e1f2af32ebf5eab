"""A dry run of slurm.sbatch: stand-ins for Slurm, Ray and an image write down what runs where, and with what."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cases import cases

ROOT = Path(__file__).parents[3]
SRUN = f"""#!{sys.executable}
import json, os, sys
words, options = sys.argv[1:], []
while words[0].startswith("-"):
    options.append(words.pop(0))
with open(os.environ["SEEN"], "a") as file:
    print(json.dumps(["srun", options, words]), file=file)
for log in [word.partition("=")[2] for word in options if word.startswith("--output=")]:
    for stream in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
image = [word.partition("=")[2] for word in options if word.startswith("--container-image=")]
if image:
    os.chdir("/")
    os.environ["IMAGE"] = image[0]
os.execvp(words[0], words)
"""
TOLD = """#!{python}
import json, os, resource, sys, time
words = sys.argv[1:]
if {name!r} == "python" and words[0] in ("-c", "-"):
    os.execv({python!r}, [{python!r}, *words])
ends = "_CACHE_DIR", "_CACHE_ROOT", "_DIR", "_IFNAME", "_ADDRESS", "no_proxy"
kept = [name for name in os.environ if name.endswith(ends)]
with open(os.environ["SEEN"], "a") as file:
    about = dict((name, os.environ[name]) for name in kept)
    about |= dict(files=resource.getrlimit(resource.RLIMIT_NOFILE)[0], image=os.environ.get("IMAGE"), cwd=os.getcwd())
    print(json.dumps([{name!r}, words, about]), file=file)
while words[0].endswith("wait_for_nodes.py") and open(os.environ["SEEN"]).read().count('["start"') < int(words[2]):
    time.sleep(0.05)
if words[:1] == ["start"]:
    time.sleep(600)
if words[:2] == ["job", "status"]:
    print("succeeded")
sys.exit(int(os.environ["DOCTOR_EXIT"]) if "openrlhf_shear.cli.doctor" in words else 0)
"""
SCONTROL = """#!/bin/sh
case "$2" in
    hostnames) echo one; echo two;;
    node) echo NodeAddr=127.0.0.2;;
esac
"""
IMAGE = "--container-image=/shared/shear.sqsh --container-name=shear"


@pytest.fixture
def program(tmp_path):
    """A function that writes a program before those of the machine; the stand-ins are written."""
    (tmp_path / "bin").mkdir()

    def write(name: str, text: str) -> None:
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)

    for name in ("ray", "python"):
        write(name, TOLD.format(python=sys.executable, name=name))
    write("srun", SRUN)
    write("scontrol", SCONTROL)
    shutil.copytree(ROOT / "examples" / "scripts", tmp_path / "examples" / "scripts")
    return write


@pytest.fixture
def submit(tmp_path, program):
    """A function that starts submit.sh for a job with words and variables."""

    def start(*words: str, **variables: str) -> subprocess.Popen:
        environ = os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SEEN": str(tmp_path / "seen")}
        line = ["bash", "examples/scripts/submit.sh", "./job.sh", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(line, cwd=tmp_path, env=environ | variables, **pipes)

    return start


@pytest.fixture
def slurm(tmp_path, program):
    """A function that runs slurm.sbatch with variables, and returns what it did and what the stand-ins saw."""
    seen = tmp_path / "seen"

    def run(files: int = 0, locked: int = 0, **variables: str) -> tuple[subprocess.CompletedProcess, list]:
        about = {"JOB_ID": "7", "JOB_NUM_NODES": "2", "JOB_NODELIST": "one,two", "CPUS_ON_NODE": "4"}
        environ = {f"SLURM_{name}": value for name, value in about.items()} | {"SLURM_SUBMIT_DIR": str(tmp_path)}
        environ |= {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path), "SEEN": str(seen)}
        environ |= {"CACHES": str(tmp_path / "caches"), "DOCTOR_EXIT": "0"} | variables

        def limit() -> None:
            if files:
                resource.setrlimit(resource.RLIMIT_NOFILE, (1024, files))
            if locked:
                resource.setrlimit(resource.RLIMIT_MEMLOCK, (locked, locked))

        line = ["bash", "examples/scripts/slurm.sbatch", "./job.sh", "0"]
        done = subprocess.run(line, cwd=tmp_path, env=environ, capture_output=True, text=True, preexec_fn=limit)
        return done, [json.loads(each) for each in seen.read_text().splitlines()] if seen.exists() else []

    return run


def started(seen: list) -> list:
    return [(words, about) for name, words, about in seen if name == "ray" and words[0] == "start"]


def logs(tmp_path: Path) -> str:
    return "".join(path.read_text() for path in sorted((tmp_path / "runs/slurm-7").glob("ray-*.log")))


def test_the_header_asks_for_all_memory_of_a_node():
    header = [line.split() for line in (ROOT / "examples/scripts/slurm.sbatch").read_text().splitlines()]
    assert ["#SBATCH", "--mem=0"] in header and ["#SBATCH", "--exclusive"] in header


def test_every_command_runs_in_the_image(slurm, tmp_path):
    done, seen = slurm(SRUN_OPTIONS=IMAGE)
    assert done.returncode == 0, done.stderr
    steps = [options for name, options, _ in seen if name == "srun"]
    assert len(steps) >= 7 and all(IMAGE.split() == [o for o in step if "container" in o] for step in steps)
    commands = [(name, words, about) for name, words, about in seen if name != "srun"]
    assert {about["image"] for *_, about in commands} == {"/shared/shear.sqsh"}
    assert {about["cwd"] for *_, about in commands} == {str(tmp_path)}
    assert [words[:2] for name, words, _ in commands if name == "ray" and words[0] == "job"] == [
        ["job", "submit"],
        ["job", "status"],
    ]
    assert len(started(seen)) == 2


def test_without_an_image_only_ray_is_a_step(slurm):
    done, seen = slurm(DOCTOR="off")
    assert done.returncode == 0, done.stderr
    steps = [words for name, _, words in seen if name == "srun"]
    assert len(steps) == 2 and all("examples/scripts/slurm_node.sh" in words for words in steps)
    assert not any("openrlhf_shear.cli.doctor" in words for _, words, _ in seen)


@pytest.mark.parametrize(("doctor", "code"), [("", 1), ("warn", 0)])
def test_the_doctor_checks_the_cluster_before_the_job(slurm, doctor, code):
    done, seen = slurm(DOCTOR=doctor, DOCTOR_EXIT="1", RUNS="/shared/runs")
    (checked,) = [(words, about) for _, words, about in seen if "openrlhf_shear.cli.doctor" in words]
    assert checked[0] == ["-m", "openrlhf_shear.cli.doctor", "--cluster", "--path", "/shared/runs", "--seconds", "300"]
    (head, _), _ = started(seen)
    assert checked[1]["RAY_ADDRESS"] == f"127.0.0.2:{head[head.index('--port') + 1]}"
    submitted = any(words[:2] == ["job", "submit"] for _, words, _ in seen)
    assert (done.returncode, submitted) == (code, not code), done.stderr
    assert ("shear-doctor found what would fail" in done.stderr) == bool(code)


def test_limits_caches_and_the_interface_of_a_node(slurm, tmp_path):
    done, seen = slurm(files=16384)
    assert done.returncode == 0, done.stderr
    for _, about in started(seen):
        assert about["files"] == 16384
        assert about["NCCL_SOCKET_IFNAME"] == "=lo" and about["GLOO_SOCKET_IFNAME"] == "lo"
        for variable, name in (
            ("TRITON_CACHE_DIR", "triton"),
            ("VLLM_CACHE_ROOT", "vllm"),
            ("TORCH_EXTENSIONS_DIR", "torch_extensions_7_0"),
        ):
            assert about[variable] == str(tmp_path / "caches" / name)
    assert (tmp_path / "caches").stat().st_mode & 0o077 == 0
    assert "interface =lo, 16384 open files" in logs(tmp_path)
    assert not any("--node-ip-address" in words for words, _ in started(seen)[1:])


def test_an_interface_that_is_chosen_is_that_of_ray_and_nccl(slurm):
    done, seen = slurm(INTERFACE="lo", NCCL_SOCKET_IFNAME="=ib9")
    assert done.returncode == 0, done.stderr
    (head, _), (worker, about) = started(seen)
    assert head[head.index("--node-ip-address") + 1] == worker[worker.index("--node-ip-address") + 1] == "127.0.0.1"
    assert worker[worker.index("--address") + 1].startswith("127.0.0.1:") and about["NCCL_SOCKET_IFNAME"] == "=ib9"
    done, _ = slurm(INTERFACE="ib7")
    assert done.returncode == 1 and "INTERFACE has no IPv4 address on the first node" in done.stderr


@pytest.mark.parametrize(*cases("house", "test_limits_with_which_ray_or_nccl_fails_are_refused"))
def test_limits_with_which_ray_or_nccl_fails_are_refused(slurm, tmp_path, variables, said):
    done, seen = slurm(**variables)
    assert done.returncode == 1 and not started(seen), done.stderr
    assert "Ray did not start on all of one two" in done.stderr and said in logs(tmp_path)


@pytest.mark.parametrize(*cases("house", "test_words_that_ray_s_shell_would_change_are_refused"))
def test_words_that_ray_s_shell_would_change_are_refused(submit, word, passes):
    with submit(word) as running:
        said = running.communicate()[1]
    assert running.returncode == (0 if passes else 2), said
    assert passes or f"Ray does not pass on: {word}; put the flag into a YAML file" in said


# The log of `ray job submit` goes on for a minute, or until `ray job stop`.
UNTIL_STOPPED = """
import pathlib, time
stopped = pathlib.Path(__file__).with_name("stopped")
if sys.argv[2] == "stop":
    stopped.touch()
began = time.monotonic()
while sys.argv[2] == "submit" and not stopped.exists() and time.monotonic() < began + 60:
    time.sleep(0.1)
"""


@pytest.mark.parametrize(("status", "code"), [("succeeded", 0), ("failed", 1)])
def test_a_job_whose_log_was_cut_off_is_waited_for(program, submit, tmp_path, status, code):
    """The log ends, the dashboard does not answer once, and the job runs on for a while."""
    program(
        "ray",
        f"#!{sys.executable}\nimport os, pathlib, sys\n"
        "asked = pathlib.Path(__file__).with_name('asked')\n"
        "if sys.argv[2] == 'status':\n"
        "    asked.open('a').write('x')\n"
        "    times = asked.stat().st_size\n"
        f"    print('Status for job: RUNNING' if times < 4 else {status!r})\n"
        "    sys.exit(times == 2)\n",
    )
    with submit(POLL_SECONDS="0") as running:
        running.communicate()
    assert running.returncode == code and (tmp_path / "bin/asked").stat().st_size == 4


@pytest.mark.parametrize(("status", "code"), [("succeeded", 0), ("stopped", 75)])
def test_a_job_that_has_just_finished_is_not_queued_again(program, submit, status, code):
    program("ray", f"#!{sys.executable}\nimport sys\nprint(sys.argv[2], {status!r}, flush=True)\n{UNTIL_STOPPED}")
    with submit() as running:
        assert running.stdout.readline().startswith("submit")
        time.sleep(0.2)
        running.send_signal(signal.SIGUSR1)
        running.stdout.read()
    assert running.returncode == code


def test_the_allocation_says_how_many_gpus_and_no_proxy_is_asked_for_this_machine(slurm):
    _, seen = slurm(GPUS="8", SLURM_GPUS_ON_NODE="4", http_proxy="http://proxy:1", no_proxy="intra")
    assert all(words[words.index("--num-gpus") + 1] == "4" for words, _ in started(seen))
    (submitted,) = [about for name, words, about in seen if name == "ray" and words[:2] == ["job", "submit"]]
    assert submitted["no_proxy"].split(",")[0] == "127.0.0.1" and submitted["no_proxy"].endswith(",intra")


def test_a_head_without_an_address_is_told(slurm, program):
    program("getent", "#!/bin/sh\nexit 2\n")
    done, _ = slurm()
    assert done.returncode != 0 and "no IPv4 address is known of one (NodeAddr=127.0.0.2); set INTERFACE" in done.stderr


def test_nodes_get_an_address_of_the_head_that_they_reach(slurm, program):
    """Debian's /etc/hosts has 127.0.1.1 for a machine's own name: another node is asked for the address."""
    program("getent", "#!/bin/sh\n[ -f asked ] && echo 127.0.0.3 || echo 127.0.1.1\ntouch asked\n")
    _, seen = slurm()
    (head, _), (other, _) = started(seen)
    assert head[head.index("--node-ip-address") + 1] == "127.0.0.3"
    assert other[other.index("--address") + 1].startswith("127.0.0.3:")


def test_the_log_goes_on_while_a_training_saves(program, submit):
    """USR1 to all processes of the step leaves `ray job submit` alone, and ends in the job's stop."""
    told = "print(sys.argv[2], signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN, flush=True)"
    program("ray", f"#!{sys.executable}\nimport signal, sys\n{told}\n{UNTIL_STOPPED}")
    with submit() as running:
        assert running.stdout.readline() == "submit True\n"
        time.sleep(0.2)
        running.send_signal(signal.SIGUSR1)
        assert running.stdout.readline() == "stop False\n"
    assert running.returncode == 75
