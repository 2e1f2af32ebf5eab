"""The doctor on a Ray cluster of two nodes on this machine; the second has another version of a package."""

import json
import sys

from .processes import BIN, ROOT, environment, ray_head, wait_until


def test_a_node_with_another_version_is_named(jobs, tmp_path, tmp_path_factory):
    other, report = tmp_path / "deepspeed-0.0.1.dist-info", tmp_path / "report.json"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.0.1\n")
    words = ("--include-dashboard", "false", "--num-cpus", 1, "--num-gpus", 2)
    with ray_head(tmp_path_factory.mktemp("head"), *words) as head:
        jobs.start(
            *(BIN / "ray", "start", "--block", "--disable-usage-stats", "--address", head.address, "--num-cpus", 1),
            env=environment(PYTHONPATH=f"{tmp_path}:{ROOT}"),
        )
        wait_until(lambda: "block forever" in jobs.log(0).read_text(), "the second node joins")
        done = jobs.run(
            *(sys.executable, "-m", "openrlhf_shear.cli.doctor", "--cluster", "--path", tmp_path, "--json", report),
            env=environment(RAY_ADDRESS=head.address, HF_HUB_OFFLINE="1", PYTHONPATH=str(ROOT)),
        )
    found = json.loads(report.read_text())
    first, second = found["nodes"].values()
    assert done.code == 1 and len(first) == len(second) > 15
    (odd,) = (name for name, results in found["nodes"].items() if version(results, "deepspeed") == "0.0.1")
    reached, different = found["cluster"]
    assert reached["status"] == "ok" and f"{head.address}: 2 nodes, 2 GPUs" in reached["seen"]
    assert different["name"] == "deepspeed, the same on all nodes" and f"{odd} has 0.0.1" in different["seen"]
    told = done.log.splitlines()  # texts fold where a terminal is narrow
    assert any("deepspeed" in line and "fail" in line and "0.0.1," in line for line in told)


def version(results: list[dict], name: str) -> str:
    (checked,) = (result["same"] for result in results if result["name"] == name)
    return checked
