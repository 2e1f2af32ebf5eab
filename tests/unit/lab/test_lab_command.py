"""`python -m openrlhf_shear.cli.lab` from its flags to its files."""

import json
import subprocess
import sys
from dataclasses import fields

import pytest
import torch
from command_lines import ROOT, run_fresh
from lab_cases import write_run

from openrlhf_shear.cli.lab import main
from openrlhf_shear.lab.policy import fingerprint
from openrlhf_shear.lab.runs import jobs
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.variants import parse_rules
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR

TINY = {"placement_prompts": 4, "samples_per_prompt": 6, "steps": 2, "eval_problems": 2, "precision": "float32"}
HEAVY = ("torch", "numpy", "transformers", "matplotlib", "rich", "ray", "openrlhf")
FLAGS = [word for name, value in TINY.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(autouse=True)
def threads():
    """The command computes on one thread."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def placed(tmp_path_factory):
    """The folder and the printed text of a call that trains nothing."""
    folder = tmp_path_factory.mktemp("lab")
    command = [sys.executable, "-m", "openrlhf_shear.cli.lab", "--rules", "oracle_first_wrong,shear/window=4/matched"]
    run = subprocess.run([*command, "--seeds", "0", "--output", folder, *FLAGS], cwd=ROOT, capture_output=True)
    assert run.returncode == 0, run.stderr.decode()
    return folder, run.stdout.decode(), run.stderr.decode()


def test_help_is_quick_and_lists_every_setting():
    run, loaded = run_fresh("lab", ["--help"], HEAVY)
    assert loaded == []
    text = " ".join(run.stdout.split())
    for setting in fields(LabSettings):
        choices = setting.metadata["choices"]
        value = f"{{{','.join(choices)}}}" if choices else setting.name.upper()
        _, _, entry = text.partition(f" --{setting.name.replace('_', '-')} {value} ")
        assert entry.partition("default: ")[2].startswith(f"{setting.default})"), setting.name
    assert "RULE/matched" in text and "python -m openrlhf_shear.cli.lab --rules my_module:MyRule" in text


def test_without_seeds_it_shows_where_the_credit_goes(placed):
    folder, printed, said = placed
    found = json.loads((folder / "results.json").read_text())
    assert list(found["placements"]) == ["uniform", "oracle_first_wrong", "shear/window=4/matched"]  # uniform is added
    assert found["rules"] == [] and found["baseline"] == "uniform"
    assert {name: found["settings"][name] for name in TINY} == TINY
    uniform, oracle, matched = found["placements"].values()
    assert oracle["share"]["value"] == oracle["errors"]["hit"]["value"] == 1.0 and oracle["errors"]["rollouts"] > 0
    assert uniform["errors"]["auc"]["value"] == matched["errors"]["auc"]["value"] == 0.5
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    pictures = {f"figures/{name}.{kind}" for name in ("placement", "profile") for kind in ("png", "svg", "csv")}
    assert names == {"results.json", "results.md"} | pictures
    assert "Where the credit goes" in printed and "oracle_first_wrong" in printed
    assert "What it is worth" not in printed
    assert {line for line in said.splitlines() if line.startswith(str(folder))} == {str(folder / n) for n in names}


def test_without_seeds_it_reports_on_the_runs_that_are_there(tmp_path, capsys):
    settings, variants = LabSettings(**TINY), parse_rules("uniform,entropy_adv")
    wanted = jobs(settings, variants, range(5, 8), POLICY_DIR, fingerprint(POLICY_DIR), tmp_path)
    for job in wanted[:5]:  # the last rule's last seed is not there
        write_run(job, 0.25 + 0.125 * (job.variant.name == "entropy_adv") + 0.01 * job.seed)
    words = ["--rules", "uniform", "--baseline", "entropy_adv", "--seeds", "0"]
    main([*words, "--output", str(tmp_path), *FLAGS])
    found = json.loads((tmp_path / "results.json").read_text())
    first, second = found["rules"]
    assert (first["rule"], first["seeds"], second["rule"], second["seeds"]) == (
        "entropy_adv", [5, 6], "uniform", [5, 6, 7],
    )  # fmt: skip
    assert found["baseline"] == second["against"]["baseline"]["against"] == "entropy_adv"
    assert second["against"]["baseline"]["mean"]["mean"] == pytest.approx(-0.125)
    printed = capsys.readouterr().out
    assert "What it is worth" in printed and "-12.5" in printed
    assert not wanted[5].path.exists()
