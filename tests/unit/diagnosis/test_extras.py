"""Every command under each extra: it works with what the extra brings, or names the extra that it needs.

A fresh interpreter hides the packages that the extra does not bring, with all that these packages need in turn.
"""

import json
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from diagnosis_tables import SETTINGS, drawn_prefixes, drawn_rollouts
from test_curves import CURVES, write_log
from test_light_core import ALL, CORE, brought, under

from openrlhf_shear.diagnosis.prefixes import Prefix, write_prefixes
from openrlhf_shear.report.tools import INSTALL_TOOLS
from openrlhf_shear.rollouts.record import write_rollouts

ROOT = Path(__file__).parents[3]
COMMANDS = sorted(
    re.findall(r"^shear-[\w-]+ = \"openrlhf_shear\.cli\.(\w+):main\"", (ROOT / "pyproject.toml").read_text(), re.M)
)
# Ask every command for its help; of one that cannot be imported, what its last line would be.
HELP = """
import contextlib, io, json, runpy, sys
from openrlhf_shear import cli
said = {}
for name in sys.argv[1:]:
    module = "openrlhf_shear.cli." + name
    shown, sys.argv = io.StringIO(), [name, "--help"]
    try:
        with contextlib.redirect_stdout(shown):
            runpy.run_module(module, run_name="__main__")
    except SystemExit as error:
        said[name] = str(error.code or shown.getvalue())
    except ModuleNotFoundError as error:
        said[name] = cli.what_to_install(error.name) or repr(error)
print(json.dumps(said))
"""


def requirements(file: str) -> list[str]:
    lines = [line.partition("#")[0].strip() for line in (ROOT / file).read_text().splitlines()]
    return [line for line in lines if line]


TOOLS_MODULES = CORE | brought(requirements("requirements/tools.txt"))


@pytest.mark.parametrize("known", [CORE, TOOLS_MODULES], ids=["core", "tools"])
def test_every_command_helps_or_names_its_extra(tmp_path, known):
    done = under(tmp_path, known, "-c", HELP, *COMMANDS)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert set(said) == set(COMMANDS)
    for name, text in said.items():
        of_cluster = name in ("train_ppo_ray", "serve_reward")
        assert ("needs the extra [cluster]: " if of_cluster else "usage:") in text, (name, text)


def test_the_tools_analyse_a_diagnosis_and_report_a_run(tmp_path):
    """What was made on a cluster is looked at on a laptop."""
    tools, rng = TOOLS_MODULES, np.random.default_rng(0)
    assert not {"vllm", "ray", "openrlhf", "datasets"} & tools
    names = [field.name for field in fields(Prefix)]
    rows = [
        Prefix(**{name: row[name] for name in names if name in row})
        for row in drawn_prefixes(rng, problems=14, positions=5).to_dict("records")
    ]
    write_prefixes(tmp_path / "diagnosis/prefixes.parquet", rows, SETTINGS)
    write_rollouts(tmp_path / "diagnosis/rollouts.parquet", drawn_rollouts(rng, groups=14), SETTINGS)
    write_log(tmp_path / "tb", CURVES)
    lines = (
        "diagnose --analyse diagnosis --resamples 10 --ngram 0",
        "report tb --output report",
        "rollout_page diagnosis/rollouts.parquet --output page.html",
    )
    done = under(tmp_path, tools, "-c", ALL, *lines)
    assert done.returncode == 0 and "needs the extra" not in done.stderr, done.stderr
    for made in ("diagnosis/results.json", "report/index.html", "page.html"):
        assert (tmp_path / made).is_file(), made


@pytest.mark.parametrize("tool", ["matplotlib", "tensorboard"])
def test_a_missing_tool_is_named_with_its_extra(tmp_path, tool):
    write_log(tmp_path / "tb", CURVES)
    known = TOOLS_MODULES - {tool}
    done = under(tmp_path, known, "-m", "openrlhf_shear.cli.report", "tb", "--output", "report")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(f"needs the extra [tools]: {tool} is not installed; {INSTALL_TOOLS}")
