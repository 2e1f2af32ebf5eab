"""The README can be read in five minutes, claims no more than was run, and its badges, links and commands are true."""

import re
import tomllib
from pathlib import Path

import badges
import pytest
import yaml

import openrlhf_shear

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAPER = "https://arxiv.org/abs/2604.23318"


def test_it_is_short_and_shows_its_chart_and_the_quickstart_first():
    assert len(re.sub(r"```.*?```", "", README, flags=re.S).split()) < 1000
    places = [README.index(part) for part in ("docs/images/results.png", "pip install .", "quickstart.py", "make run")]
    assert places == sorted(places)
    lines = [line.partition("#")[0].strip() for line in README.splitlines() if line.startswith("pip install")]
    version = re.search(r"torch==([\d.]+)", (ROOT / "scripts/install_cpu.sh").read_text())[1]
    assert lines == [
        f"pip install torch=={version} --index-url https://download.pytorch.org/whl/cpu",
        "pip install .",
    ]


def test_it_names_the_two_commands():
    blocks = re.findall(r"```bash\n(.*?)```", README, re.S)
    named = {word for block in blocks for word in re.findall(r"^make ([\w-]+)", block, re.M)}
    assert named == {"run", "test"}
    targets = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.M)
    assert named <= {name for names in targets for name in names.split()}


def test_it_cites_the_paper():
    assert README.count(PAPER) >= 2 and PROJECT["urls"]["Paper"] == PAPER
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == openrlhf_shear.__version__ and cited["license"] == PROJECT["license"]
    (paper,) = cited["references"]
    assert paper["identifiers"] == [{"type": "other", "value": "arXiv:2604.23318"}] and paper["url"] == PAPER
    assert " ".join(paper["title"].split()) in README


@pytest.mark.parametrize("file", ["README.md", "pyproject.toml", "mkdocs.yml", "openrlhf_shear/__init__.py"])
def test_nothing_is_for_real_clusters_before_a_run_on_a_gpu(file):
    text = (ROOT / file).read_text()
    assert "real clusters" not in text
    if file == "README.md":
        assert "| on a GPU | nothing yet |" in text


def test_every_badge_is_true():
    made = badges.badges()
    assert {file.stem: file.read_text() for file in badges.FOLDER.iterdir()} == made, "python scripts/badges.py"
    assert set(re.findall(r"badges/(\w+)\.svg", README)) == set(made)
    assert openrlhf_shear.__version__ in made["version"] and "3.11 | 3.12" in made["python"]


@pytest.mark.parametrize("page", sorted(path.name for path in ROOT.glob("*.md")))
def test_every_local_link_leads_somewhere(page):
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.S)
    for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
        assert (ROOT / target).exists(), target


def test_every_command_of_the_package_has_a_row():
    page = (ROOT / "docs/commands.md").read_text()
    assert not {name for name in PROJECT["scripts"] if f"`{name}`" not in page}
    modules = {file.stem for file in (ROOT / "openrlhf_shear/cli").glob("*.py") if "\n    main()\n" in file.read_text()}
    assert not {name for name in modules if f"`{name}`" not in page}


def test_every_figure_and_table_of_the_paper_has_a_command():
    source = ROOT.parent / "shared/paper/shear.tex"
    if not source.is_file():
        pytest.skip(f"no {source}")
    labels = re.findall(r"\\label\{((?:fig|tab|alg):[^}]*)\}", source.read_text())
    shown = re.findall(r"`((?:fig|tab|alg):[^`]*)`", (ROOT / "docs/paper.md").read_text())
    assert len(labels) > 15 and sorted(shown) == sorted(labels)


def test_the_workflow_runs_the_tiers_of_ci_and_the_long_runs():
    tiers = re.search(r"^TIERS=\((.*)\)$", (ROOT / ".ci/run").read_text(), re.M)[1].split()
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    matrix = jobs["tests"]["strategy"]["matrix"]
    tiers.append("test-long")  # too long for CI here
    assert matrix["tier"] == tiers and ".ci/run ${{ matrix.tier }}" in [
        step.get("run") for step in jobs["tests"]["steps"]
    ]
    named = badges.badges()["python"]
    assert all(python in named for python in matrix["python"])
    targets = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{tier}[\w -]*:", targets, re.M) for tier in [*tiers, "package"])
