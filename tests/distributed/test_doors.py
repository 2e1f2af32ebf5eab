"""Every port that a run opens is asked for what runs code, by somebody without the run's token."""

import ipaddress
import json
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import psutil

from .processes import environment, wait_until

# The first rollouts wait, with everything open, until the test lets them go.
REWARD = """
import os, pathlib, time
here = pathlib.Path(__file__).parent

def reward_func(queries, prompts, labels):
    if queries[0].endswith("I do not know."):  # the try before training
        return {"rewards": 0.0}
    (here / "token").write_text(os.environ["RAY_AUTH_TOKEN_PATH"])
    while not (here / "go").exists():
        time.sleep(0.1)
    return {"rewards": float(len(queries[0]) % 2)}
"""
# Runs a task on the Ray at argv[1].
DRIVER = """
import pathlib, ray, sys
ray.init(sys.argv[1], log_to_driver=False)
ray.get(ray.remote(num_cpus=0)(pathlib.Path.touch).remote(pathlib.Path(sys.argv[2])))
"""
METHODS = (  # one of each service that Ray's processes offer to each other
    "NodeInfoGcsService/GetAllNodeInfo",
    "InternalKVGcsService/InternalKVGet",
    "JobInfoGcsService/AddJob",
    "ActorInfoGcsService/GetNamedActorInfo",
    "NodeManagerService/GetNodeStats",
    "NodeManagerService/RequestWorkerLease",
    "ObjectManagerService/FreeObjects",
    "CoreWorkerService/PushTask",
    "CoreWorkerService/GetCoreWorkerStats",
    "ReporterService/ReportOCMetrics",
)
NOT_SERVED = {"UNIMPLEMENTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "UNKNOWN"}  # another service, or none of gRPC's


def listening(process: psutil.Process) -> dict[int, str]:
    """Ports of a process and of all below it, and the addresses that they listen at."""
    found = {}
    for each in (process, *process.children(recursive=True)):
        try:
            connections = each.net_connections("tcp")
        except psutil.NoSuchProcess:
            continue
        found |= {c.laddr.port: f"{c.laddr.ip} {each.name()}" for c in connections if c.status == "LISTEN"}
    return found


def posted(port: int, path: str, body: dict, token: str = "") -> int:
    """The HTTP status, 0 where nobody speaks HTTP."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        return urllib.request.urlopen(request, timeout=10 if token else 3).status
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ValueError):
        return 0


def called(port: int, method: str, token: str = "") -> str:
    """The name of gRPC's status of an empty request."""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            channel.unary_unary(f"/ray.rpc.{method}")(b"", timeout=2, metadata=metadata)
        except grpc.RpcError as error:
            return error.code().name
    return "OK"


def test_no_port_of_a_run_does_anything_without_its_token(jobs, train, tmp_path):
    (tmp_path / "reward.py").write_text(REWARD)
    with ThreadPoolExecutor() as pool:
        words = ("--reward.remote_url", tmp_path / "reward.py", "--reward.timeout", "900")
        run = pool.submit(train, *words)
        try:
            wait_until(lambda: run.done() or (tmp_path / "token").exists(), "rollouts are graded")
            assert not run.done(), jobs.tails()
            token_file = Path((tmp_path / "token").read_text())
            ask_all(psutil.Process(jobs.last.pid), token_file, tmp_path)
        finally:
            (tmp_path / "go").touch()
        run.result()
    assert not token_file.exists()


def ask_all(process: psutil.Process, token_file: Path, folder: Path) -> None:
    token = token_file.read_text()
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600 and len(token) == 64
    for each in (process, *process.children(recursive=True)):
        assert token not in " ".join(each.cmdline()) and token not in each.environ().values()

    ports = listening(process)
    wide = {port: at for port, at in ports.items() if not is_loopback(at.split()[0])}
    # torch.distributed's store, which cannot be bound: it keeps addresses, and runs nothing
    assert list(wide.values()) == [":: ray::ShearPolicyActor"], ports

    job = {"entrypoint": f"touch {folder / 'by_http'}"}
    paths = ("/api/job_agent/jobs/", "/api/jobs/", "/get_or_create_runtime_env")
    answers = {(port, path): posted(port, path, job) for port in ports for path in paths}
    assert not {asked: status for asked, status in answers.items() if 200 <= status < 300}
    refusing = [port for port in ports if answers[port, paths[0]] == 401]
    assert any(posted(port, paths[0], job, token) == 200 for port in refusing)  # the agent's, to who has the token
    wait_until((folder / "by_http").exists, "a job with the token runs")

    codes = {(port, method): called(port, method) for port in ports for method in METHODS}
    served = {asked for asked, code in codes.items() if code not in NOT_SERVED}
    assert {codes[asked] for asked in served} == {"UNAUTHENTICATED"}
    assert {method.split("/")[0] for _, method in served} == {method.split("/")[0] for method in METHODS}

    (gcs,) = (port for port, method in served if method == METHODS[0])
    driver = (sys.executable, "-c", DRIVER, f"127.0.0.1:{gcs}")
    stranger = subprocess.run([*driver, folder / "without"], env=environment(), capture_output=True, text=True)
    assert stranger.returncode and not (folder / "without").exists()
    known = environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(token_file))
    subprocess.run([*driver, folder / "with"], env=known, check=True)
    assert (folder / "with").exists()


def is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback
