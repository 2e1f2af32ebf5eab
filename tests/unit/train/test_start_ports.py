"""Ports of a run from their choice to their use: no other process and no other start takes them."""

import errno
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("address", "listens"), [("127.0.0.1", "127.0.0.1"), ("10.0.0.1", "::")])
def test_a_port_is_held_from_its_choice_to_the_store(address, listens):
    code = """
import psutil, ray, socket, sys, torch.distributed as distributed
from openrlhf_shear.train.nodes.worker import HoldsItsPort, keep_stores_there
keep_stores_there()
keep_stores_there()
ray._private.services.get_node_ip_address = lambda: sys.argv[1]
port = HoldsItsPort._get_free_port()
try:
    socket.create_server(("127.0.0.1", port))
except OSError as error:
    print(error.errno)
store = next(distributed.rendezvous(f"tcp://127.0.0.1:{port}?rank=0&world_size=1"))[0]
again = next(distributed.rendezvous(f"tcp://127.0.0.1:{port}?rank=0&world_size=1"))[0]
store.set("a", "b")
assert again.get("a") == b"b"
print([c.laddr.ip for c in psutil.Process().net_connections("tcp") if c.laddr.port == port and c.status == "LISTEN"])
"""
    done = subprocess.run([sys.executable, "-c", code, address], capture_output=True, text=True)
    assert done.stdout.split() == [str(errno.EADDRINUSE), f"['{listens}']"], done.stdout + done.stderr


def test_a_start_s_ports_are_taken_neither_by_connections_nor_by_another_start(tmp_path, monkeypatch):
    """Another start, whose only candidates are this one's ports, finds none until this one has ended."""
    code = """
import sys, pathlib
from openrlhf_shear.train.nodes import patient_node as p
first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
if not sys.argv[1:]:
    ports = p.free_ports(5)
    assert len(set(ports)) == 5 and (max(ports) < first or first <= 2 * p._FIRST_PORT)
    print(*ports, flush=True)
    sys.stdin.read()
else:
    p.range = lambda *_: [*map(int, sys.argv[1:])]
    try:
        print(p.free_ports(1))
    except OSError as error:
        print(error)
"""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    line = [sys.executable, "-c", code]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as start:
        ports = start.stdout.readline().split()
        other = subprocess.run([*line, *ports], capture_output=True, text=True)
        assert other.stdout.startswith("no free port from"), other.stdout + other.stderr
        start.stdin.close()
    later = subprocess.run([*line, *ports], capture_output=True, text=True)
    assert later.stdout.strip("[]\n") in ports, later.stdout + later.stderr
