"""Every port of a Ray that a run starts, asked with the run's token and without it."""

import http.client
import ipaddress
import json
import re
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import grpc
import psutil
import pytest
import ray.core.generated

from .processes import Jobs, environment, free_ports, wait_until

# As `launch` does on a machine with GPUs, of which there are none; with a store of torch's.
# All agents ask for one port, so that only the first Ray of a machine serves HTTP there: this Ray asks for another.
OWN_RAY = """
import functools, json, os, pathlib, socket, sys, time
import ray
from ray._private.parameter import RayParams
from openrlhf_shear.train.nodes import cluster

@ray.remote(num_cpus=0)
class Rank:
    def __init__(self):
        import torch.distributed
        with socket.socket() as free:
            free.bind(("", 0))
            self.store = free.getsockname()[1]
        method = f"tcp://{ray.util.get_node_ip_address()}:{self.store}"
        torch.distributed.init_process_group("gloo", init_method=method, rank=0, world_size=1)
    def port(self):
        return self.store

RayParams.__init__ = functools.partialmethod(RayParams.__init__, dashboard_agent_listen_port=int(sys.argv[2]))
cluster.join(0)
rank = Rank.remote()
told = {"store": ray.get(rank.port.remote()), "gcs": ray.get_runtime_context().gcs_address}
told |= {"token": os.environ["RAY_AUTH_TOKEN_PATH"], "pid": os.getpid()}
(folder := pathlib.Path(sys.argv[1])).joinpath("telling").write_text(json.dumps(told))
(folder / "telling").rename(folder / "told")
while not (folder / "release").exists():
    time.sleep(0.1)
"""
TASK = """
import pathlib, ray, sys
ray.init(sys.argv[1], log_to_driver=False)
touched = pathlib.Path(sys.argv[2])
ray.get(ray.remote(num_cpus=0)(lambda: touched.touch()).remote())
"""
STUBS = sorted(Path(*ray.core.generated.__path__).glob("*_pb2_grpc.py"))
METHODS = sorted({method for stub in STUBS for method in re.findall(r"'(/ray\.rpc\.[\w./]+)'", stub.read_text())})
HARMLESS = {  # one of each server that runs code or has it run
    "gcs": "/ray.rpc.JobInfoGcsService/GetAllJobInfo",
    "raylet": "/ray.rpc.NodeManagerService/GetSystemConfig",
    "worker": "/ray.rpc.CoreWorkerService/NumPendingTasks",
    "agent": "/ray.rpc.ReporterService/HealthCheck",
}
JOBS = ("/api/job_agent/jobs/", "/api/jobs/")
SILENT = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}  # no server that speaks gRPC


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A Ray as a run starts it: with its addresses, its token and its listening ports."""
    folder, jobs = tmp_path_factory.mktemp("own"), Jobs(tmp_path_factory.mktemp("jobs"))
    run = jobs.start(sys.executable, "-c", OWN_RAY, folder, *free_ports(1))
    try:
        wait_until(lambda: (folder / "told").exists() or run.poll() is not None, "Ray has started", pause=0.1)
        assert (folder / "told").exists(), jobs.tails()
        told = SimpleNamespace(**json.loads((folder / "told").read_text()), folder=folder, jobs=jobs, run=run)
        told.secret = Path(told.token).read_text()
        wait_until(lambda: all(served(told, told.secret)), "every server answers who has the token")
        told.listening = listening(told.pid)
        yield told
    finally:
        jobs.stop()


def listening(root: int) -> dict[int, set[str]]:
    """Port -> the addresses at which a process and those below it listen."""
    found: dict[int, set[str]] = {}
    for process in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
        for connection in process.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                found.setdefault(connection.laddr.port, set()).add(connection.laddr.ip)
    return found


def is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


def ask(port: int, methods, token: str) -> dict[str, grpc.StatusCode]:
    """What a port says to empty messages for some methods of gRPC; nothing where it does not speak that."""
    header = [("authorization", f"Bearer {token}")] if token else []
    said = {}
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for method in methods:
            try:
                channel.unary_unary(method)(b"", timeout=60 if said else 5, metadata=header)
                said[method] = grpc.StatusCode.OK
            except grpc.RpcError as error:
                said[method] = error.code()
            if len(said) == 1 and said[method] in SILENT:
                return {}
    return said


def ask_all(ports, methods, token: str) -> dict[int, dict[str, grpc.StatusCode]]:
    """What each port says, asked at once: some never answer."""
    with ThreadPoolExecutor(len(ports)) as pool:
        return dict(zip(ports, pool.map(lambda port: ask(port, methods, token), ports), strict=True))


def served(own, token: str) -> list[bool]:
    """Of each kind of server, whether it does what is harmless."""
    said = ask_all(listening(own.pid), HARMLESS.values(), token).values()
    return [any(codes.get(method) is grpc.StatusCode.OK for codes in said) for method in HARMLESS.values()]


def post(port: int, path: str, command: str, token: str = "", timeout: float = 60.0) -> int | None:
    """The status with which a port answers who submits a job there; None where it does not speak HTTP."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("POST", path, json.dumps({"entrypoint": command}), headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def test_all_of_them_are_on_loopback(own):
    assert own.store in own.listening
    assert {port: ips for port, ips in own.listening.items() if not all(map(is_loopback, ips))} == {}


@pytest.mark.parametrize("token", ["", "0" * 64])
def test_no_method_of_any_server_is_answered_without_the_token(own, token):
    for port, codes in ask_all(own.listening, METHODS, token).items():
        assert set(codes.values()) <= {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED}, (port, codes)
    assert not any(served(own, token))


def test_no_port_takes_a_job_without_the_token(own, tmp_path):
    asked = [(port, path) for port in own.listening for path in JOBS]
    with ThreadPoolExecutor(len(asked)) as pool:  # some ports never answer
        statuses = pool.map(lambda door: post(*door, f"touch {tmp_path}/ran", timeout=20.0), asked)
        said = dict(zip(asked, statuses, strict=True))
    assert {*said.values()} <= {None, 401, 403, 404, 405}, said
    doors = [door for door, status in said.items() if status in (401, 403)]
    assert {post(*door, f"touch {tmp_path}/ran", "0" * 64) for door in doors} <= {401, 403}
    taken = [post(*door, f"touch {tmp_path}/asked", own.secret) for door in doors]
    assert taken.count(200) == 1, (doors, taken)  # the agent
    wait_until((tmp_path / "asked").exists, "the command of who has the token")
    assert not (tmp_path / "ran").exists()


def test_no_driver_runs_a_task_without_the_token(own, tmp_path):
    here = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # Ray then takes 127.0.0.1 as it is
    for variables in ({}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
        variables = environment(**variables, **here)
        stranger = own.jobs.run(sys.executable, "-c", TASK, own.gcs, tmp_path / "ran", env=variables)
        assert stranger.code != 0 and ("AuthenticationError" in stranger.log or "InvalidAuthToken" in stranger.log)
    variables = environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=own.token, **here)
    assert own.jobs.run(sys.executable, "-c", TASK, own.gcs, tmp_path / "asked", env=variables).code == 0
    assert (tmp_path / "asked").exists() and not (tmp_path / "ran").exists()


def test_the_token_is_a_file_of_the_user_alone_until_the_run_ends(own):
    assert stat.S_IMODE(Path(own.token).stat().st_mode) == 0o600
    (own.folder / "release").touch()
    assert own.jobs.finish(own.run).code == 0
    assert not Path(own.token).exists()
