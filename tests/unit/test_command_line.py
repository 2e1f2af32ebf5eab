"""The parser: all of OpenRLHF's flags, the fork's flags made from `ShearConfig`, and no heavy import on the way."""

from __future__ import annotations

from dataclasses import fields
from importlib import metadata

import pytest
from command_lines import run_fresh

from openrlhf_shear.cli.flags import build_parser, spec_of
from openrlhf_shear.cli.train_ppo_ray import parse
from openrlhf_shear.config import RULES, CreditSpec, PrmConfig, SearchConfig, ShearConfig
from openrlhf_shear.config.spec import OutcomeConfig
from openrlhf_shear.fork import upstream


def test_every_upstream_flag_is_still_there():
    mine = {flag: action for action in build_parser()._actions for flag in action.option_strings}
    upstreams = {flag: action for action in upstream.parser()._actions for flag in action.option_strings}
    assert len(upstreams) > 150
    for flag, action in upstreams.items():
        kept = mine[flag]
        for name in ("dest", "type", "nargs", "const"):
            assert getattr(kept, name) == getattr(action, name), (flag, name)
        assert set(action.choices or ()) <= set(kept.choices or ()), flag
        if flag != "--logger.wandb.run_name":  # the time of day
            assert kept.default == action.default, flag


def test_only_the_fork_adds_flags():
    added = {a.dest for a in build_parser()._actions} - {a.dest for a in upstream.parser()._actions}
    configs = [(rule.name, rule.config) for rule in RULES.values() if rule.config]
    configs += [("prm", PrmConfig), ("shear", SearchConfig), ("shear", OutcomeConfig)]
    assert added == {f"{section}.{knob.name}" for section, config in configs for knob in fields(config)} | {
        *(
            "device",
            "force_openrlhf_version",
            "eval.before_train",
            "eval.suite",
            "eval.data_dir",
            "eval.k",
            "eval.limit",
        ),
        *("reward.timeout", "reward.cores", "reward.memory_mb", "reward.allow_unsandboxed", "dump_rollouts_every"),
        *("reward.retries", "reward.max_failed", "reward.max_failed_steps", "ckpt.best_weights_only"),
        *("train.max_restarts", "train.max_skipped_steps", "train.grace_seconds"),
    }


def test_defaults_of_the_flags_are_those_of_the_configs():
    for name, rule in RULES.items():
        spec = spec_of(vars(build_parser().parse_args(["--algo.advantage.estimator", name])))
        assert spec == CreditSpec(name, rule.config() if rule.config else None)


def test_types_of_the_shear_flags_come_from_the_annotations():
    line = "--shear.window 7 --shear.stride 3 --shear.epsilon 4.5 --shear.epsilon_rel 1e-2 --shear.pool mean"
    line += " --algo.advantage.estimator shear"
    config = spec_of(vars(build_parser().parse_args(line.split()))).config
    assert config == ShearConfig(window=7, stride=3, epsilon=4.5, epsilon_rel=0.01, pool="mean")
    assert isinstance(config.window, int)


def test_parse_hands_over_group_norm_and_the_rule(job):
    values = vars(parse(job("--shear.window 50 --device cpu --train.seed 3")))
    assert values["credit"] == CreditSpec("shear", ShearConfig(window=50))
    assert values["algo.advantage.estimator"] == "group_norm"
    assert values["device"] == "cpu"
    assert values["eval.before_train"] is False and values["dump_rollouts_every"] == 0
    assert values["train.seed"] == 3
    assert not [name for name in values if name.startswith("shear.")]


def test_dumps_are_of_every_rule_and_no_part_of_one(job, prm, capsys):
    for estimator, extra in {"shear": "", "uniform": "", "prm_reshape": prm, "pure": prm}.items():
        more = f"--prm.model_name_or_path {extra}" if extra else ""
        changes = f"--shear.dump_rollouts_every 20 --algo.kl.init_coef 0 --algo.advantage.estimator {estimator} {more}"
        values = vars(parse(job(changes)))
        assert values["dump_rollouts_every"] == 20
        assert values["credit"].search == SearchConfig(), "two runs that differ in this compute the same"
    assert "no effect" not in capsys.readouterr().err


def test_another_estimator_has_no_rule_and_its_shear_flags_are_warned_of(job, capsys):
    values = vars(parse(job("--shear.window=50 --algo.advantage.estimator rloo")))
    assert values["credit"] is None
    assert values["algo.advantage.estimator"] == "rloo"
    assert "--shear.window=50 has no effect with --algo.advantage.estimator rloo" in capsys.readouterr().err


def test_old_spellings_reach_parse(job):
    values = vars(parse(job("--seed 11 --max_norm 0.5")))
    assert (values["train.seed"], values["actor.max_norm"], values["critic.max_norm"]) == (11, 0.5, 0.5)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("--algo.advantage.estimator grpo", ["invalid choice: 'grpo'", "group_norm", "shear"]),
        ("--shear.distance l2", ["--shear.distance", "invalid choice: 'l2'", "sinkhorn"]),
        ("--shear.window many", ["--shear.window", "invalid int value: 'many'"]),
        ("--shear.window 0", ["shear.window must be at least 1: got 0"]),
        ("--shear.stride 200", ["shear.stride must not exceed shear.window (100)", "got 200"]),
        ("--shear.epsilon -1", ["shear.epsilon must be a positive number: got -1.0"]),
        ("--device tpu", ["--device", "invalid choice: 'tpu'"]),
        ("--vllm_is_correction_type x", ["--vllm_is_correction_type is not known: got 'x'"]),
        ("--no.such.flag", ["unrecognized arguments: --no.such.flag"]),
    ],
)
def test_a_wrong_flag_exits_with_2_and_says_why(job, capsys, extra, message):
    with pytest.raises(SystemExit) as stopped:
        parse(job(extra))
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert all(part in told for part in message), told
    assert len(told.splitlines()) <= 4  # a short usage, not two hundred flags


def test_help_lists_every_knob_with_its_default_and_imports_nothing_heavy():
    run, loaded = run_fresh("train_ppo_ray", ["--help"])
    assert (run.returncode, loaded) == (0, [])
    text = " ".join(run.stdout.split())
    for knob in (*fields(ShearConfig), *fields(SearchConfig), *fields(OutcomeConfig)):
        _, _, entry = text.partition(f" --shear.{knob.name} ")
        default = "unset" if knob.default is None else knob.default
        assert f"(default: {default})" in entry.split(" --")[0], knob.name
    assert "--algo.advantage.estimator shear" in text
    assert "--pretrain" in text  # tells that the old spellings are accepted


def test_a_good_line_is_parsed_and_checked_without_heavy_imports(job):
    run, loaded = run_fresh("train_ppo_ray", job(), function="parse")
    assert (run.returncode, run.stderr.strip(), loaded) == (0, "", [])


def test_a_missing_openrlhf_is_one_clear_line(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(SystemExit, match=r"error: OpenRLHF is not installed; use: pip install openrlhf==0\.11\.2$"):
        parse([])


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import argparse\nparser = argparse.ArgumentParser()\n", "has no `if __name__"),
        ("if __name__ == '__main__':\n    parser = torch.parser()\n    args = parser.parse_args()\n", "torch"),
        ("if __name__ == '__main__':\n    p = 1\n    args = p.parse_args()\n", "builds no `parser`"),
    ],
)
def test_a_changed_upstream_is_told_with_its_version(monkeypatch, source, problem):
    monkeypatch.setattr(upstream, "_source", lambda: (source, "train_ppo_ray.py"))
    with pytest.raises(RuntimeError, match=problem) as raised:
        upstream.parser()
    assert metadata.version("openrlhf") in str(raised.value)
