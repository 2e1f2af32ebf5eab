"""Command lines of before: each old spelling lands where 0.11 keeps the same thing, none is forgotten."""

import argparse
import json
from functools import cache

import pytest
from cases import cases
from command_lines import ROOT
from packaging.version import Version

from openrlhf_shear.cli import train_ppo_ray
from openrlhf_shear.cli.train_ppo_ray import build_parser
from openrlhf_shear.line import spelling
from openrlhf_shear.line.flags import CHOICES
from openrlhf_shear.train import upstream

# What 0.11 has and no older version had under a flat name.
NEW_IN_0_11 = """
    actor.adam.eps actor.loss_agg_mode actor.min_lr_ratio actor.muon.lr
    actor.muon.momentum actor.muon.nesterov actor.muon.no_nesterov actor.muon.ns_steps actor.optim
    algo.advantage.is_correction_gating algo.advantage.is_correction_level algo.advantage.is_correction_mode
    algo.kl.unbiased_gradient critic.adam.eps critic.min_lr_ratio critic.muon.lr critic.muon.momentum
    critic.muon.nesterov critic.muon.no_nesterov critic.muon.ns_steps critic.optim ds.experts_implementation
""".split()  # noqa: SIM905

UNCHANGED = {"--local_rank", "--use_ms"}
# What OpenRLHF 0.8 to 0.11.1 had on its command line that 0.11.2 has not, or has with another default.
OLD = json.loads((ROOT / "tests" / "data" / "old_flags.json").read_text(encoding="utf-8"))
PREFIX = "algo.advantage.is_correction_"


@cache
def actions_by_flag() -> dict[str, argparse.Action]:
    return {flag: action for action in upstream.parser()._actions for flag in action.option_strings}


@cache
def the_parser() -> argparse.ArgumentParser:
    return build_parser()


def sample_values(action: argparse.Action) -> list[str]:
    """Words that the flag accepts and that differ from its default."""
    if action.nargs == 0:
        return []
    if choices := CHOICES.get(action.dest, action.choices):
        return [str(next(choice for choice in choices if choice != action.default))]
    count = action.nargs if isinstance(action.nargs, int) else 2 if action.nargs in ("+", "*") else 1
    word = {int: "17", float: "0.375", str: "some/where"}[action.type]
    return [word] * count


def parsed(action: argparse.Action, words: list[str]) -> object:
    if action.nargs == 0:
        return action.const
    values = [action.type(word) for word in words]
    return values if action.nargs is not None else values[0]


def parse(*argv: str) -> dict:
    return vars(the_parser().parse_args(spelling.translate(argv, [])[0]))


def changed(*argv: str) -> dict:
    """Return the values that a command sets, without the defaults of its version."""
    parser = the_parser()  # one for both lines, as the default of logger.wandb.run_name is the time of day
    defaults = vars(parser.parse_args([]))
    given = vars(parser.parse_args(spelling.translate(argv, [])[0]))
    return {name: value for name, value in given.items() if value != defaults[name]}


def test_every_row_lands_in_its_new_place_and_nowhere_else():
    for old, new in spelling.RENAMES.items():
        targets = [actions_by_flag()[flag] for flag in new]
        words = sample_values(targets[0])
        expected = {target.dest: parsed(target, words) for target in targets}
        assert changed(old, *words) == expected, old
        if len(words) == 1:  # what argparse takes behind an equals sign
            assert changed(f"{old}={words[0]}") == expected, old


def test_every_flag_of_the_old_parsers_is_known_and_no_other():
    tables = spelling.RENAMES, spelling.SWITCHES, spelling.LENGTHS, spelling.IGNORED
    corrections = *spelling.CORRECTION_SWITCHES, *spelling.CORRECTION_TYPES, *spelling.CORRECTION_ICEPOP
    assert sorted(OLD) == sorted([*(flag for table in tables for flag in table), *corrections])
    assert not set(OLD) & set(actions_by_flag())
    for flag, row in OLD.items():
        kind = {"int": "17", "float": "0.375"}.get(row["type"], "some/where")
        words = [row["choices"][0] if row["choices"] else kind] * {None: 1, "*": 2, "+": 2}.get(
            row["nargs"], row["nargs"]
        )
        _, notes = spelling.translate([flag, *words], [])
        assert flag in str(notes[0]), flag


@pytest.mark.parametrize(*cases("line", "test_lengths"))
def test_lengths(line, whole, response):
    values = parse(*line.split())
    assert (values["data.max_len"], values["rollout.max_new_tokens"]) == (whole, response)


def old_commands() -> list[tuple[str, str, str]]:
    text = (ROOT / "tests" / "data" / "old_commands.txt").read_text().replace("\n    ", " ")
    rows = [line.partition(" ") for line in text.splitlines() if line and not line.startswith("#")]
    return [(version, *line.split(" => ")) for version, _, line in rows]


@pytest.mark.parametrize(("version", "line", "expected"), old_commands())
def test_commands_of_old_versions_are_taken(job, version, line, expected):
    job()
    flags = [word for word in line.split() if word.startswith("--")]
    known = {flag for flag, row in OLD.items() if Version(row["first"]) <= Version(version) <= Version(row["last"])}
    assert not set(flags) - known - set(actions_by_flag()), "a flag that this version had not"
    assert Version(version) >= Version("0.10.2") or set(flags) <= known | UNCHANGED
    values = vars(train_ppo_ray.parse(line.split()))
    assert {name: repr(values[name]) for name in (pair.partition("=")[0] for pair in expected.split())} == dict(
        pair.split("=") for pair in expected.split()
    )


def test_every_flag_of_0_11_is_the_successor_of_one_old_flag_or_new():
    successors = [flag for new in spelling.RENAMES.values() for flag in new]
    assert len(successors) == len(set(successors))
    others = UNCHANGED | {f"--{name}" for name in NEW_IN_0_11} | {"-h", "--help"}
    assert not others & set(successors)
    assert others | set(successors) == set(actions_by_flag())


@pytest.mark.parametrize(*cases("line", "test_known_lines"))
def test_known_lines(line, expected):
    assert changed(*line.split()) == expected


@pytest.mark.parametrize(*cases("line", "test_importance_sampling_correction"))
def test_importance_sampling_correction(line, expected):
    # Left out of `expected` is what 0.11 has by default: level off, mode mask, gating ratio.
    assert changed(*line.split()) == {PREFIX + name: value for name, value in expected.items()}


@pytest.mark.parametrize("words", [["nonsense"], [], ["--seed", "1"]])
def test_an_unknown_correction_type_is_refused_with_the_known_ones(words):
    refusals = []
    spelling.translate([spelling.CORRECTION_TYPES[0], *words], refusals)
    assert "tis, icepop, seq-mask-tis" in str(refusals[0])


@pytest.mark.parametrize(
    ("line", "seed"),
    [("--seed 1 --train.seed 2", 2), ("--train.seed 2 --seed 1", 1), ("--seed=1 --train.seed=2 --seed=3", 3)],
)
def test_the_last_spelling_on_the_line_wins(line, seed):
    assert parse(*line.split())["train.seed"] == seed


def test_a_new_spelling_passes_untouched_and_silently():
    argv = ["--train.seed", "1", "--data.input_template", "seed {}", "--actor.adam.betas", "0.8", "0.9", "--use_ms"]
    assert spelling.translate(argv, []) == (argv, [])


def test_one_line_tells_the_new_spellings_and_another_the_ignored_flags():
    _, notes = spelling.translate(
        ["--pretrain", "a/b", "--max_norm", "1", "--pretrain", "c/d", "--ptx_coef", "0.1"], []
    )
    told, ignored = map(str, notes)
    assert told.count("--pretrain -> --actor.model_name_or_path") == 1
    assert "--max_norm -> --actor.max_norm --critic.max_norm" in told
    assert "--ptx_coef no longer exists in OpenRLHF 0.11; ignored" in ignored


def test_a_missing_value_is_reported_under_the_new_spelling(capsys):
    with pytest.raises(SystemExit):
        parse("--pretrain")
    assert "--actor.model_name_or_path: expected one argument" in capsys.readouterr().err
