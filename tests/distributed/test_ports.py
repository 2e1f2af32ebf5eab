"""Every port of a Ray that a run starts, asked with the run's token and without it."""

import ipaddress
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import grpc
import psutil
import pytest
import ray.core.generated

from .processes import Jobs, wait_until

# As `launch` does on a machine with GPUs, of which there are none; with a dashboard, and a store of torch's.
OWN_RAY = """
import json, os, pathlib, socket, sys, time
import ray
from openrlhf_shear.fork import cluster

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

cluster.join(0)
rank = Rank.remote()
told = {"store": ray.get(rank.port.remote()), "gcs": ray.get_runtime_context().gcs_address}
told |= {"token": os.environ["RAY_AUTH_TOKEN_PATH"], "pid": os.getpid()}
(folder := pathlib.Path(sys.argv[1])).joinpath("telling").write_text(json.dumps(told))
(folder / "telling").rename(folder / "told")
while not (folder / "release").exists():
    time.sleep(0.1)
"""
STUBS = sorted(Path(*ray.core.generated.__path__).glob("*_pb2_grpc.py"))
METHODS = sorted({method for stub in STUBS for method in re.findall(r"'(/ray\.rpc\.[\w./]+)'", stub.read_text())})
HARMLESS = {  # one of each server that runs code or has it run
    "gcs": "/ray.rpc.JobInfoGcsService/GetAllJobInfo",
    "raylet": "/ray.rpc.NodeManagerService/GetSystemConfig",
    "worker": "/ray.rpc.CoreWorkerService/NumPendingTasks",
    "agent": "/ray.rpc.ReporterService/HealthCheck",
}
SILENT = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}  # no server that speaks gRPC


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A Ray as a run starts it: what the run says of it, and its listening addresses by port."""
    folder, jobs = tmp_path_factory.mktemp("own"), Jobs(tmp_path_factory.mktemp("jobs"))
    run = jobs.start(sys.executable, "-c", OWN_RAY, folder)
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
                channel.unary_unary(method)(b"", timeout=5, metadata=header)
                said[method] = grpc.StatusCode.OK
            except grpc.RpcError as error:
                said[method] = error.code()
            if len(said) == 1 and said[method] in SILENT:
                return {}
    return said


def served(own, token: str) -> list[bool]:
    """Of each kind of server, whether it does what is harmless."""
    said = [ask(port, HARMLESS.values(), token) for port in listening(own.pid)]
    return [any(codes.get(method) is grpc.StatusCode.OK for codes in said) for method in HARMLESS.values()]


def test_all_of_them_are_on_loopback(own):
    assert own.store in own.listening
    assert {port: ips for port, ips in own.listening.items() if not all(map(is_loopback, ips))} == {}


@pytest.mark.parametrize("token", ["", "0" * 64])
def test_no_method_of_any_server_is_answered_without_the_token(own, token):
    for port in own.listening:
        codes = ask(port, METHODS, token)
        assert set(codes.values()) <= {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED}, (port, codes)
    assert not any(served(own, token))
