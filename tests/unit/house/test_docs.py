"""The documentation: its site builds, its first run works, and the messages that it explains are in the code."""

import ast
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import page_commands
import pytest
import yaml

import openrlhf_shear
from openrlhf_shear.cli.train_ppo_ray import read
from openrlhf_shear.preflight import checks, models

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
MY_MODULE = """
from examples.rules.surprise_rule import SurpriseRule
class MyRule(SurpriseRule):
    def __init__(self, power=1, path=""): pass
"""


@pytest.mark.skipif(not find_spec("mkdocs"), reason="no mkdocs: make setup")
def test_the_site_builds_without_a_warning(tmp_path):
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    built = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "Raises" in (tmp_path / "site/api.html").read_text()
    assert (tmp_path / "site/repository/openrlhf_shear/credit/rule.py").is_file()


def test_every_page_is_in_the_contents():
    nav = re.search(r"^nav:\n(.*)", (ROOT / "mkdocs.yml").read_text(), re.M | re.S)[0]
    shown = [page for part in yaml.safe_load(nav)["nav"] for page in _pages(part)]
    assert sorted(shown) == sorted([file.name for file in DOCS.glob("*.md")] + ["index.md"]), "each of them once"


def test_the_api_page_and_the_types_have_every_public_name():
    """A name in `__all__` has an entry, or is in the text if it is a constant; mypy reads how a user calls it."""
    page = (DOCS / "api.md").read_text()
    entries = {path.rpartition(".")[2] for path in re.findall(r"^::: (\S+)", page, re.M)}
    entries |= {name for names in re.findall(r"members: \[(.*)\]", page) for name in names.split(", ")}
    constants = {name for name in re.findall(r"`(?:\w+\.)*([A-Z]+)`", page)}
    exported = {}
    for file in Path(openrlhf_shear.__file__).parent.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                exported[file.relative_to(ROOT).as_posix()] = set(ast.literal_eval(node.value))
    assert len(exported) > 7 and set().union(*exported.values()) - entries - constants == set()
    used = (ROOT / "tests/data/typed_use.py").read_text()
    for room in ("config", "credit", "rewards", "rewards/code", "rollouts/page"):
        names = exported[f"openrlhf_shear/{room}/__init__.py"]
        assert {name for name in names if not re.search(rf"\b{name}\b", used)} == set(), room


def _pages(part) -> list[str]:
    if isinstance(part, dict):
        return [page for parts in part.values() for inner in parts for page in _pages(inner)]
    return [part]


@pytest.fixture
def first_run(job, monkeypatch):
    """The files of docs/first-run.md, in a folder with a model, and its command."""
    page = (DOCS / "first-run.md").read_text()
    write_files(page)
    return page, re.search(r"```bash\n(shear-train .*?)```", page, re.S)[1]


def write_files(page: str) -> None:
    for name, text in re.findall(r'```\w+ title="(.*?)"\n(.*?)```', page, re.S):
        Path(name).write_text(text)


def words_of(command: str) -> list[str]:
    """With the model that is there."""
    prog, *words = shlex.split(command.replace("\\\n", ""))
    assert prog == "shear-train"
    words[words.index("--actor.model_name_or_path") + 1] = "model"
    return words


def test_the_first_run_can_be_used(first_run):
    _, command = first_run
    run = read(words_of(command)).run
    assert (run.device, run.spec.estimator) == ("cpu", "shear") and run.dry_run
    by_name = ("--actor.model_name_or_path=model", "--algo.advantage.estimator=shear")
    inline = read(["--config", "cpu", "mine.yaml", *by_name]).run
    same = ("data.prompt_dataset", "data.input_key", "data.label_key", "reward.remote_url")
    same += ("shear.window", "shear.stride")
    assert [inline.flags[name] for name in same] == [run.flags[name] for name in same]


def test_the_readmes_line_is_that_of_the_first_run(first_run):
    readme = re.search(r"```bash\n(shear-train .*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    flags = dict.fromkeys(words_of(first_run[1]))
    assert [word for word in words_of(readme) if word not in flags] == []


def test_the_reward_of_the_first_run_grades(first_run):
    known = {}
    exec(Path("my_reward.py").read_text(), known)
    for response, right in (("She has 7.<|im_end|>", 1.0), ("It is 12", 0.0), ("Many", 0.0)):
        given = known["reward_func"](["3 and 4?" + response], ["3 and 4?"], ["7"])
        assert (given["rewards"], given["scores"]) == (right, right)


def test_every_message_that_is_explained_is_one_of_the_code():
    said = set()
    for file in Path(openrlhf_shear.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                said.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                said.add("\0".join(part.value for part in node.values if isinstance(part, ast.Constant)))
    page = (DOCS / "troubleshooting.md").read_text()
    first_cells = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `")]
    messages = [message for cell in first_cells for message in re.findall(r"`(.*?)`", cell)]
    assert len(messages) > 20
    for message in messages:
        parts = [part.strip() for part in message.split("...") if part.strip(" ()")]
        assert any(re.search(".*".join(map(re.escape, parts)), text, re.S) for text in said), message


@pytest.mark.parametrize("page", sorted(page.relative_to(ROOT).as_posix() for page in page_commands.PAGES))
def test_every_command_of_a_page_can_be_read(page, job, monkeypatch):
    for name in ("CHECKS", "OF_MODELS"):  # files and models of the pages are not here
        monkeypatch.setattr(checks, name, [])
    monkeypatch.setattr(checks, "data", lambda run: iter(()))
    monkeypatch.setattr(models, "model_config", lambda *_: None)
    monkeypatch.setenv("WANDB_API_KEY", "of tests")
    text = (ROOT / page).read_text()
    write_files(text)
    Path("RUN").mkdir()
    Path("RUN/run.yaml").write_text("train.seed: 1\n")
    Path("my_module.py").write_text(MY_MODULE)
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    line = job("--prm.model_name_or_path model")
    failed = []
    for command, whole in page_commands.commands(text):
        try:
            page_commands.check(command, whole, line)
        except (AssertionError, SystemExit) as error:
            failed.append((command, str(error)))
    assert failed == []
