"""The doctor on a Ray cluster of two nodes, both on this machine; the second one has another version of a package."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def started(tmp_path_factory):
    """A function: environment, words of `ray start`; all is stopped in the end. The folder is short, as sockets have
    paths of at most 107 characters."""
    running = []

    def start(environment: dict, *words: str) -> str:
        line = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus", "1", "--block", *words]
        process = subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        running.append(process)
        said = []
        for text in process.stdout:
            said.append(text)
            if "block forever" in text:  # the last that it says, once others may join
                return "".join(said)
        raise AssertionError("".join(said))

    yield start
    for process in reversed(running):
        process.terminate()  # with --block it stops what it started
        process.communicate()


def doctor(environment: dict, report: Path) -> tuple[int, dict, str]:
    line = [sys.executable, "-m", "openrlhf_shear.cli.doctor", "--cluster", "--path", report.parent, "--json", report]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode, json.loads(report.read_text()), done.stdout + done.stderr


def test_a_node_with_another_version_is_named(started, tmp_path, tmp_path_factory):
    other = tmp_path / "deepspeed-0.0.1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.0.1\n")
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    plain |= {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    folder = tmp_path_factory.mktemp("r")
    head = ("--head", "--port", "0", "--include-dashboard", "false", "--temp-dir", str(folder), "--num-gpus", "2")
    said = started(plain, *head)
    address = (folder / "ray_current_cluster").read_text().strip()
    assert address in said
    started(plain | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}, "--address", address)

    code, report, log = doctor(plain | {"RAY_ADDRESS": address}, tmp_path / "report.json")
    first, second = report["nodes"].values()
    (odd,) = (results for results in report["nodes"].values() if same(results, "deepspeed") == ["0.0.1"])
    assert code == 1 and len(first) == len(second) > 15, log
    (reached, different) = report["cluster"]
    assert reached["status"] == "ok" and f"{address}: 2 nodes, 2 GPUs" in reached["seen"]
    name = next(node for node, results in report["nodes"].items() if results is odd)
    assert different["name"] == "deepspeed, the same on all nodes" and f"{name} has 0.0.1" in different["seen"]
    assert f"{name} has 0.0.1" in " ".join(log.split()) and "0.0.1, checked with ==" in log


def same(results: list[dict], name: str) -> list[str]:
    return [one["same"] for one in results if one["name"] == name]
