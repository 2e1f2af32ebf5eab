"""`pip install .` alone: credit rules and lab need its dependencies and theirs; commands name missing extras.

The whole lab runs in a fresh interpreter in which every other package is hidden.
"""

import json
import os
import subprocess
import sys
import tomllib
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from openrlhf_shear.report.tools import INSTALL_TOOLS, TOOLS

ROOT = Path(__file__).parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NEVER = ("openrlhf", "ray", "deepspeed", "vllm", "trl", "peft")


def brought(requirements: list[str]) -> set[str]:
    """Return the top-level modules that requirements bring, with all that these need in turn."""
    modules: dict[str, set[str]] = {}
    for module, distributions in metadata.packages_distributions().items():
        for distribution in distributions:
            modules.setdefault(distribution.lower().replace("_", "-"), set()).add(module)
    waiting, seen = list(map(Requirement, requirements)), set()
    while waiting:
        requirement = waiting.pop()
        name = requirement.name.lower().replace("_", "-")
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        waiting += map(Requirement, metadata.requires(name) or ())
    return set().union(*(modules.get(name, set()) for name in seen))


CORE = brought(PYPROJECT["project"]["dependencies"])
HIDE = """
import importlib.machinery, sys

class Hidden(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = super().find_spec(name, path, target)
        place = getattr(spec, "origin", None) or (list(spec.submodule_search_locations)[0] if spec else "")
        return spec if name.partition(".")[0] in {known!r} or "site-packages" not in place else None

    @classmethod
    def find_distributions(cls, *context):
        return (found for found in super().find_distributions(*context) if found.metadata["Name"] != "openrlhf")

sys.meta_path = [Hidden if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
"""


def under(folder: Path, known: set[str], *words: object) -> subprocess.CompletedProcess:
    """Run `python` with words in a folder, in a new interpreter that finds no installed modules but the known ones."""
    (folder / "hidden").mkdir(exist_ok=True)
    (folder / "hidden/sitecustomize.py").write_text(HIDE.replace("{known!r}", repr(known)))
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder / "hidden"), str(ROOT)]), "NUMBA_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *map(str, words)], env=env, cwd=folder, capture_output=True, text=True)


@pytest.fixture
def alone(tmp_path):
    """A function: words after `python` -> the result, with the light core alone."""
    return partial(under, tmp_path, CORE)


RULES = f"""
import sys
from importlib.util import find_spec
import openrlhf_shear.tasks.arithmetic.arithmetic, openrlhf_shear.rewards.last_number
print(sorted({{"torch", "sympy"}} & set(sys.modules)))
print([n for n in {[*TOOLS, *NEVER]!r} if find_spec(n)])
import torch, openrlhf_shear.credit.registry
from openrlhf_shear.credit import shear_weights
print(shear_weights([torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]])], [True, False]).weights)
"""


def test_the_small_rewards_need_no_torch_and_the_credit_rules_nothing_beyond_the_core(alone):
    done = alone("-c", RULES)
    loaded, found, weights = done.stdout.splitlines() or [done.stderr] * 3
    assert (loaded, found, weights) == ("[]", "[]", "[tensor([2.]), tensor([2.])]")


def test_the_lab_works_alone(alone, tmp_path):
    small = "--seeds 1 --steps 1 --prompts 2 --samples-per-prompt 4 --eval-problems 4 --placement-prompts 4 --workers 1"
    line = ["-m", "openrlhf_shear.cli.lab", "--rules", "uniform,shear", *small.split(), "--output", tmp_path / "lab"]
    done = alone(*line)
    assert done.returncode == 0, done.stderr
    assert f"pictures are written as numbers alone: matplotlib is not installed; {INSTALL_TOOLS}" in done.stderr
    assert "│ shear " in done.stdout
    assert len(json.loads((tmp_path / "lab/results.json").read_text())["rules"]) == 2
    assert {path.suffix for path in (tmp_path / "lab/figures").iterdir()} == {".csv"}


def test_the_quickstart_works_alone(alone, tmp_path):
    done = alone(ROOT / "examples/quickstart.py", "--output", tmp_path / "quick")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "quick/rollouts.html").read_text()
    assert "SHEAR in a minute" in page and "█" in done.stdout and "first error at" in done.stdout


NEED_MORE = {
    "train_ppo_ray --help": "cluster]: ",
    "rollout_page x.parquet --output x.html": "tools]: pyarrow",
    "prepare_data --source math --output x.jsonl": "cluster]: datasets",
    "serve_reward --help": "cluster]: ",
}
# What `python -m` does for each command, in one interpreter.
ALL = """
import runpy, sys
for line in sys.argv[1:]:
    name, *words = line.split()
    sys.argv = ["-m"]
    import openrlhf_shear.cli
    sys.argv = [f"{name}.py", *words]
    try:
        runpy.run_module(f"openrlhf_shear.cli.{name}", run_name="__main__")
    except ModuleNotFoundError:
        sys.excepthook(*sys.exc_info())
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
"""


def test_a_command_that_needs_more_says_so_in_a_line_with_the_command(alone):
    first, *_ = NEED_MORE
    name, *words = first.split()
    alone_first, every = alone("-m", f"openrlhf_shear.cli.{name}", *words), alone("-c", ALL, *NEED_MORE)
    said = every.stderr.splitlines()
    assert alone_first.returncode == 1 and alone_first.stderr.splitlines() == said[:1]
    for told, (line, missing) in zip(said, NEED_MORE.items(), strict=True):
        assert told.startswith(f"python -m openrlhf_shear.cli.{line.split()[0]}: error: needs the extra [{missing}")
        assert INSTALL_TOOLS in told or "scripts/install_cluster.sh" in told


def test_the_files_of_the_extras_list_the_known_packages():
    names = {line.split(">=")[0] for line in (ROOT / "requirements/tools.txt").read_text().split("\n")[1:-1]}
    assert {"ot" if name == "POT" else name for name in names} == set(TOOLS)
    for extra in PYPROJECT["tool"]["setuptools"]["dynamic"]["optional-dependencies"].values():
        assert all((ROOT / file).is_file() for file in extra["file"])


def test_the_light_core_is_not_large():
    """Sizes as installed: what docs/install.md says that `pip install .` adds beside torch."""
    own = {"numba", "llvmlite", "numpy", "regex", "rich", "scipy", "tqdm", "transformers", "tokenizers", "hf-xet"}
    files = [file for name in own for file in metadata.files(name) or ()]
    size = sum(path.stat().st_size for file in files if (path := Path(file.locate())).is_file())
    assert size < 560e6
