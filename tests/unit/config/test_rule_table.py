"""A built-in rule is its file and one entry of the table; its knobs have one grammar, in training and in the lab."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cases import table

from openrlhf_shear.cli.train_ppo_ray import parse
from openrlhf_shear.config import RULES, CreditSpec, EntropyAdvConfig, SearchConfig, ShearConfig
from openrlhf_shear.config.names import parse_rule
from openrlhf_shear.config.rules import VineConfig
from openrlhf_shear.config.shear import ErrorOddsConfig
from openrlhf_shear.credit import rules
from openrlhf_shear.credit.registry import load_rule, make_rule, traits_of
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.variants import parse_rules

NEW_RULE = table("config", "NEW_RULE")
NEW_ENTRY = table("config", "NEW_ENTRY")
USES = """
import argparse, json, sys, types
import new_entry
from openrlhf_shear.cli.train_ppo_ray import build_parser
from openrlhf_shear.cli import train_ppo_ray
from openrlhf_shear.cli.train_ppo_ray import parse
from openrlhf_shear.evaluation.comparison.cells import method_of
from openrlhf_shear.evaluation.suite import run_facts
from openrlhf_shear.credit.registry import load_rule
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.variants import parse_rules
from openrlhf_shear.preflight import models

models.broken = lambda *_: ()  # as in conftest.py: the folder has no weights
line = json.loads(sys.argv[1])
flat = parse([*line, "--late.power", "3"])
nested = types.SimpleNamespace(
    credit=flat.credit, logger=None,
    data=types.SimpleNamespace(max_len=9, prompt_dataset="d", prompt_probs=None, max_samples=9),
    rollout=types.SimpleNamespace(n_samples_per_prompt=4, batch_size=8, max_new_tokens=9, temperature=1, top_p=1),
    reward=types.SimpleNamespace(remote_url="r.py"), train=types.SimpleNamespace(seed=1, batch_size=8),
    actor=types.SimpleNamespace(model_name_or_path="m", adam=types.SimpleNamespace(lr=1.0)),
    eval=types.SimpleNamespace(dataset=None, suite=None, k=0, limit=0, temperature=1.0),
    algo=types.SimpleNamespace(
        advantage=types.SimpleNamespace(estimator="group_norm"), kl=types.SimpleNamespace(init_coef=0, use_loss=False)
    ),
)
(variant,) = parse_rules("late/power=5")
shown = build_parser().format_help().replace("\\n" + " " * 24, " ")
print(json.dumps({
    "help": ["weights that grow along the rollout" in shown, "place. (greater than 0; default: 2.0)" in shown],
    "rule": load_rule(flat.credit).config.power,
    "behind its name": load_rule(parse([*line, "--algo.advantage.estimator", "late/power=4"]).credit).config.power,
    "facts": run_facts(nested)["knobs"],
    "lab": variant.rule(LabSettings()).config.power,
    "title": [method_of("late").title, method_of("late").ink],
}))
"""


def test_a_new_rule_is_its_file_and_one_entry(job, tmp_path):
    (tmp_path / "late.py").write_text(NEW_RULE)
    (tmp_path / "new_entry.py").write_text(NEW_ENTRY)
    line = job("--algo.advantage.estimator late")
    run = subprocess.run([sys.executable, "-c", USES, json.dumps(line)], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == {
        **{"help": [True, True], "rule": 3.0, "behind its name": 4.0, "facts": {"power": 3.0}, "lab": 5.0},
        "title": ["Late", "brown"],
    }
    assert "no effect" not in run.stderr


def test_every_rule_of_the_package_has_an_entry():
    files = {path.stem for path in Path(rules.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == {entry.where.partition(":")[0].rpartition(".")[2] for entry in RULES.values()}


@pytest.mark.parametrize("entry", RULES.values(), ids=RULES)
def test_an_entry_agrees_with_its_class(entry):
    rule = make_rule(parse_rule(entry.name), entry.config and entry.config(), "here")
    assert entry.where == f"{type(rule).__module__}:{type(rule).__name__}"
    assert (rule.name, traits_of(rule)) == (entry.name, entry.traits)
    assert entry.config is None or rule.config == entry.config()


LAB_ALONE = [entry.name for entry in RULES.values() if entry.traits.lab_alone]


def test_rules_of_the_lab_alone_are_made_there_and_nowhere_else():
    assert {"rlsd", "sdpo", "vine"} <= set(LAB_ALONE)
    for name in LAB_ALONE:
        (variant,) = parse_rules(name)
        assert variant.rule(LabSettings()).name == name
        with pytest.raises(ValueError, match="which only the credit lab gives; use shear-lab"):
            load_rule(CreditSpec(name))
    assert parse_rules("vine/every=8/whiten=False")[0].rule(LabSettings(stride=7)).config == VineConfig(8, 9, False)


@pytest.mark.parametrize("name", LAB_ALONE)
def test_help_of_training_does_not_offer_them(name, capsys):
    with pytest.raises(SystemExit):
        parse(["--help"])
    told = capsys.readouterr().out
    assert f"--{name}." not in told and f" {name}," not in told and "--fipo.half_life" in told


@pytest.mark.parametrize(
    ("estimator", "knobs"),
    [("shear/window=50/stride=5", ShearConfig(50, 5)), ("entropy_adv/alpha=1", EntropyAdvConfig(1.0))],
)
def test_knobs_stand_behind_a_rule_s_name_as_in_the_lab(job, estimator, knobs):
    spec = parse(job(f"--algo.advantage.estimator {estimator}")).credit
    assert spec == CreditSpec(estimator.partition("/")[0], knobs)
    settings = LabSettings(window=100, stride=25, epsilon_rel=0.015)
    assert parse_rules(estimator)[0].rule(settings).config == load_rule(spec).config == knobs


def test_how_the_search_runs_can_stand_there_too(job):
    spec = parse(job("--algo.advantage.estimator shear/backend=torch --credit.max_cost_bytes 2097152")).credit
    assert spec == CreditSpec("shear", ShearConfig(), SearchConfig("torch", 2**21))
    assert load_rule(spec).search == spec.search


def test_a_rule_is_made_once_and_config_json_is_read_once(job, tmp_path, monkeypatch):
    (tmp_path / "counted_rules.py").write_text(
        "from openrlhf_shear.credit.rules.uniform import UniformRule\n"
        "made = []\n"
        "class Counted(UniformRule):\n"
        "    def __init__(self):\n"
        "        made.append(self)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    read, read_text = [], Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda file, **how: read.append(file.name) or read_text(file, **how))
    parse(job("AS counted_rules:Counted"))
    assert len(sys.modules["counted_rules"].made) == 1
    assert read.count("config.json") == 1
    parse(job("AS counted_rules:Counted"))
    assert len(sys.modules["counted_rules"].made) == 2, "its file may have changed"


@pytest.fixture
def reading_rules(tmp_path, monkeypatch):
    """A module with a rule that has a text knob."""
    (tmp_path / "reading_rules.py").write_text(
        "from openrlhf_shear.credit.rules.uniform import UniformRule\n"
        "class Reader(UniformRule):\n"
        "    def __init__(self, path, power=1):\n"
        "        self.path, self.power = path, power\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("reading_rules")
def test_a_text_knob_may_hold_slashes_and_commas(job):
    for path in ("/data/x", "a,b/c", "it's/here", "both \"and'/"):
        name = f"reading_rules:Reader/power=2/path={path!r}"
        rule = load_rule(parse([*job(""), "--algo.advantage.estimator", name]).credit)
        assert (rule.path, rule.power) == (path, 2)
        (variant, _) = parse_rules(f"{name},uniform")
        assert variant.rule(LabSettings()).path == path


@pytest.mark.parametrize("knobs", ["--error_odds.rise 3 --error_odds.reach=4", "/rise=3/reach=4", "YAML"])
def test_error_odds_takes_its_knobs_by_every_way(job, tmp_path, knobs):
    words = f"--algo.advantage.estimator error_odds{knobs if knobs[0] == '/' else ''}"
    if knobs == "YAML":
        (tmp_path / "run.yaml").write_text("error_odds:\n  rise: 3\n  reach: 4\n")
        words += f" --config {tmp_path / 'run.yaml'}"
    rule = load_rule(parse(job(words + (f" {knobs}" if knobs[0] == "-" else ""))).credit)
    assert (rule.name, rule.config) == ("error_odds", ErrorOddsConfig(rise=3, reach=4))


@pytest.mark.parametrize("words", ["error_odds/rise=0", "error_odds --error_odds.rise 0"])
def test_error_odds_without_the_rise_reads_no_hidden_states(job, words):
    spec = parse(job(f"--algo.advantage.estimator {words}")).credit
    assert spec.traits.needs == load_rule(spec).needs == {"log_probs", "entropies"}
