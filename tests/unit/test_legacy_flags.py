"""Command lines of before: each 0.9 spelling lands where 0.11 keeps the same thing, none is forgotten; moved files."""

import argparse
import hashlib
import json
from functools import cache
from pathlib import Path

import pytest

from openrlhf_shear.cli import frame
from openrlhf_shear.cli.flags import build_parser
from openrlhf_shear.fork import upstream
from openrlhf_shear.preflight import legacy

# Of all 141 options of OpenRLHF 0.9.10 with what each became. That release is of the past, so nothing here may change.
OF_0_9_10 = "ab4b4e55cd759beb0c25dc34f946ef8c48b8a459c415c910c3fb079d022ebe75"

# What 0.11 has and 0.9.10 had not.
NEW_IN_0_11 = """
    actor.adam.eps actor.freeze_visual_encoder actor.loss_agg_mode actor.min_lr_ratio actor.muon.lr
    actor.muon.momentum actor.muon.nesterov actor.muon.no_nesterov actor.muon.ns_steps actor.optim
    algo.advantage.is_correction_gating algo.advantage.is_correction_level algo.advantage.is_correction_mode
    algo.kl.unbiased_gradient critic.adam.eps critic.min_lr_ratio critic.muon.lr critic.muon.momentum
    critic.muon.nesterov critic.muon.no_nesterov critic.muon.ns_steps critic.optim data.image_key
    data.max_images_per_prompt ds.experts_implementation
""".split()  # noqa: SIM905

UNCHANGED = {"--local_rank", "--use_ms"}
PREFIX = "algo.advantage.is_correction_"
TIS = {"level": "token", "mode": "clip"}


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
    if action.choices:
        return [str(next(choice for choice in action.choices if choice != action.default))]
    count = action.nargs if isinstance(action.nargs, int) else 2 if action.nargs in ("+", "*") else 1
    word = {int: "17", float: "0.375", str: "some/where"}[action.type]
    return [word] * count


def parsed(action: argparse.Action, words: list[str]) -> object:
    if action.nargs == 0:
        return action.const
    values = [action.type(word) for word in words]
    return values if action.nargs is not None else values[0]


def parse(*argv: str) -> dict:
    return vars(the_parser().parse_args(legacy.translate(argv)))


def changed(*argv: str) -> dict:
    parser = the_parser()  # one for both lines, as the default of logger.wandb.run_name is the time of day
    defaults = vars(parser.parse_args([]))
    given = vars(parser.parse_args(legacy.translate(argv)))
    return {name: value for name, value in given.items() if value != defaults[name]}


def test_every_row_lands_in_its_new_place_and_nowhere_else():
    for old, new in legacy.RENAMES.items():
        targets = [actions_by_flag()[flag] for flag in new]
        words = sample_values(targets[0])
        expected = {target.dest: parsed(target, words) for target in targets}
        assert changed(old, *words) == expected, old
        if len(words) == 1:  # what argparse takes behind an equals sign
            assert changed(f"{old}={words[0]}") == expected, old


def test_every_flag_of_0_9_10_is_known_as_ever():
    known = {*legacy.RENAMES, *legacy.IGNORED, legacy.CORRECTION_SWITCH, legacy.CORRECTION_TYPE, *UNCHANGED}
    assert len(known) == 141 and not (known - UNCHANGED) & set(actions_by_flag())
    table = json.dumps([legacy.RENAMES, legacy.IGNORED], sort_keys=True)
    assert hashlib.sha256(table.encode()).hexdigest() == OF_0_9_10


def test_every_flag_of_0_11_is_the_successor_of_one_old_flag_or_new():
    successors = [flag for new in legacy.RENAMES.values() for flag in new]
    assert len(successors) == len(set(successors))
    others = UNCHANGED | {f"--{name}" for name in NEW_IN_0_11} | {"-h", "--help"}
    assert not others & set(successors)
    assert others | set(successors) == set(actions_by_flag())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--advantage_estimator shear", {"algo.advantage.estimator": "shear"}),
        ("--l2=0.1", {"actor.adam.weight_decay": 0.1, "critic.adam.weight_decay": 0.1}),
        ("--adam_betas 0.8 0.9", {"actor.adam.betas": [0.8, 0.9], "critic.adam.betas": [0.8, 0.9]}),
        ("--reward_clip_range -5 5", {"reward.clip_range": [-5.0, 5.0]}),
        ("--eps_clip_low_high 0.2 0.28 --seed 7", {"actor.eps_clip_low_high": [0.2, 0.28], "train.seed": 7}),
        ("--perf --actor_init_on_gpu --ptx_coef 0.1 --seed 7", {"train.seed": 7}),
        ("--ptx_coef=0.1 --seed 7", {"train.seed": 7}),
    ],
)
def test_known_lines(line, expected):
    assert changed(*line.split()) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--enable_vllm_is_correction", TIS),
        ("--enable_vllm_is_correction --vllm_is_correction_type tis", TIS),
        ("--enable_vllm_is_correction --vllm_is_correction_type icepop", {"level": "token"}),
        ("--vllm_is_correction_type=icepop --enable_vllm_is_correction", {"level": "token"}),
        ("--enable_vllm_is_correction --vllm_is_correction_type seq-mask-tis", {"level": "seq"}),
        ("--vllm_is_correction_type seq-mask-tis", {}),
        ("--enable_vllm_is_correction --vllm_is_truncated_threshold 0.8 3", TIS | {"threshold": [0.8, 3.0]}),
        ("--enable_vllm_is_correction --algo.advantage.is_correction_level off", {"mode": "clip"}),
    ],
)
def test_importance_sampling_correction(line, expected):
    # Left out of `expected` is what 0.11 has by default: level off, mode mask, gating ratio.
    assert changed(*line.split()) == {PREFIX + name: value for name, value in expected.items()}


@pytest.mark.parametrize("words", [["nonsense"], [], ["--seed", "1"]])
def test_an_unknown_correction_type_is_refused_with_the_known_ones(words):
    with pytest.raises(ValueError, match="tis, icepop, seq-mask-tis"):
        legacy.translate([legacy.CORRECTION_TYPE, *words])


@pytest.mark.parametrize(
    ("line", "seed"),
    [("--seed 1 --train.seed 2", 2), ("--train.seed 2 --seed 1", 1), ("--seed=1 --train.seed=2 --seed=3", 3)],
)
def test_the_last_spelling_on_the_line_wins(line, seed):
    assert parse(*line.split())["train.seed"] == seed


def test_a_new_spelling_passes_untouched_and_silently(capsys):
    argv = ["--train.seed", "1", "--data.input_template", "seed {}", "--actor.adam.betas", "0.8", "0.9", "--use_ms"]
    assert legacy.translate(argv) == argv
    assert capsys.readouterr().err == ""


def test_one_line_tells_the_new_spellings_and_one_what_is_ignored(capsys):
    legacy.translate(["--pretrain", "a/b", "--max_norm", "1", "--pretrain", "c/d", "--ptx_coef", "0.1"])
    told, ignored = capsys.readouterr().err.splitlines()
    assert told.count("--pretrain -> --actor.model_name_or_path") == 1
    assert "--max_norm -> --actor.max_norm --critic.max_norm" in told
    assert "--ptx_coef no longer exists in OpenRLHF 0.11; ignored" in ignored


def test_a_missing_value_is_reported_under_the_new_spelling(capsys):
    with pytest.raises(SystemExit):
        parse("--pretrain")
    assert "--actor.model_name_or_path: expected one argument" in capsys.readouterr().err


MOVED = [
    ("openrlhf_shear/rewards/arithmetic.py", "openrlhf_shear/arithmetic/arithmetic.py"),
    ("/a/clone/openrlhf_shear/rewards/arithmetic.py", "/a/clone/openrlhf_shear/arithmetic/arithmetic.py"),
    ("../openrlhf_shear/data/arithmetic_policy/", "../openrlhf_shear/arithmetic/shipped_policy"),
]


@pytest.mark.parametrize(("old", "new"), MOVED)
def test_a_file_that_has_moved_is_found_by_its_old_name(old, new, capsys):
    translated = legacy.translate(["--pretrain", old, f"--reward.remote_url={old}"])
    assert translated == ["--actor.model_name_or_path", new, f"--reward.remote_url={new}"]
    renamed, moved = capsys.readouterr().err.splitlines()
    assert "0.9 spellings" in renamed
    assert moved == f"[Info] files of openrlhf_shear have moved: {old} -> {new}"


def test_every_command_knows_moved_files_which_are_there(capsys):
    for new in legacy.MOVED.values():
        assert (Path(legacy.__file__).parents[2] / new).exists()
    command = frame.command(lambda parser: parser.add_argument("--task"), "")
    command(lambda args: print(args))(["--task", MOVED[0][0]])
    assert f"task='{MOVED[0][1]}'" in capsys.readouterr().out


def test_an_older_copy_of_a_moved_file_is_left_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("openrlhf_shear/rewards").mkdir(parents=True)
    Path(MOVED[0][0]).touch()
    line = ["--reward", MOVED[0][0], "--other", "my_openrlhf_shear/rewards/arithmetic.py"]
    assert legacy.moved(line) == line and not capsys.readouterr().err
