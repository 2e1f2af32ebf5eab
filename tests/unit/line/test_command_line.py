"""The parser: all of OpenRLHF's flags, the fork's flags made from `ShearConfig`, and no heavy import on the way."""

import sys
from dataclasses import fields
from importlib import metadata
from types import SimpleNamespace

import pytest
from cases import cases
from command_lines import run_fresh

from openrlhf_shear.cli.train_ppo_ray import build_parser, main, parse, read
from openrlhf_shear.config import RULES, CreditSpec, PrmConfig, PureConfig, SearchConfig, ShearConfig
from openrlhf_shear.config.knobs import Range
from openrlhf_shear.config.spec import OutcomeConfig
from openrlhf_shear.line.run import spec_of
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR
from openrlhf_shear.train import upstream
from openrlhf_shear.train.screen.outcome import RefusedError


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


def test_no_flag_takes_the_next_flag_for_its_value(capsys):
    parser = build_parser()
    valued = [action.option_strings[-1] for action in parser._actions if action.nargs in (None, "+")]
    assert len(valued) > 150
    for flag in valued:
        with pytest.raises(SystemExit):
            parser.parse_args([flag, "--dry_run"])
        assert f"{flag}: expected" in capsys.readouterr().err


def test_defaults_of_the_flags_are_those_of_the_configs():
    for name, rule in RULES.items():
        spec = spec_of(vars(build_parser().parse_args(["--algo.advantage.estimator", name])))
        assert spec == CreditSpec(name, rule.config() if rule.config else None)


def test_parse_hands_over_group_norm_and_the_rule(job):
    values = vars(parse(job("--shear.window 50 --device cpu --train.seed 3")))
    assert values["credit"] == CreditSpec("shear", ShearConfig(window=50))
    assert values["algo.advantage.estimator"] == "group_norm"
    assert values["device"] == "cpu"
    assert values["eval.before_train"] is False and values["dump_rollouts_every"] == 0
    assert values["train.seed"] == 3
    assert not [name for name in values if name.startswith("shear.")]


def test_dumps_are_of_every_rule_and_no_part_of_one(job, capsys):
    for words in ("AS shear", "AS uniform", "RESHAPE PRM", "PURE PRM"):
        args = parse(job(f"--credit.dump_rollouts_every 20 --algo.kl.init_coef 0 {words}"))
        assert args.dump_rollouts_every == 20
        assert args.credit.search == SearchConfig(), "two runs that differ in this compute the same"
    assert "no effect" not in capsys.readouterr().err


def test_what_the_prm_flags_say_is_what_the_workers_get(prm, job):
    args = parse(job("RESHAPE PRM"))
    assert args.credit == CreditSpec("prm_reshape", prm=PrmConfig(model_name_or_path=str(prm)))
    assert args.credit.prm.step_end == "\n\n" and args.credit.prm.max_len == 4096
    flags = ("num_nodes 2", "num_gpus_per_node 1", "micro_batch_size 3", "max_len 99", "separator ;", "offload")
    args = parse(job(f"RESHAPE PRM --ds.zero_stage 3 {' '.join('--prm.' + flag for flag in flags)}"))
    assert args.credit.prm == PrmConfig(str(prm), 2, 1, 3, 99, ";", True)
    assert not [name for name in vars(args) if name.startswith(("prm.", "pure."))]


def test_the_width_of_pure_is_the_longest_response_unless_given(job):
    line = "PURE PRM --algo.kl.init_coef 0"
    assert parse(job(f"{line} --rollout.max_new_tokens 77")).credit.config == PureConfig(width=77)
    knobs = "--pure.width 5 --pure.temperature 0.5 --pure.verifiable_coef 2"
    spec = parse(job(f"{line} --rollout.max_new_tokens 77 {knobs}")).credit
    assert spec.config == PureConfig(temperature=0.5, verifiable_coef=2.0, width=5)
    assert parse(job(line)).credit.config.width is None


@pytest.mark.parametrize(*cases("line", "test_flags_without_effect_are_warned_of"))
def test_flags_without_effect_are_warned_of(job, capsys, changes, said):
    line = job(changes)
    capsys.readouterr()  # of the model that PRM makes
    parse(line)
    assert capsys.readouterr().err == f"[Warning] {said.replace('{}', '--algo.advantage.estimator')}\n"


@pytest.mark.usefixtures("outside")
def test_rules_of_the_package_and_from_outside(job, capsys):
    for name in ("uniform", "my_rules:Good"):
        args = vars(parse(job(f"AS {name} --credit.correct_threshold 0.7")))
        assert args["credit"] == CreditSpec(name, outcome=OutcomeConfig(0.7))
        assert args["algo.advantage.estimator"] == "group_norm"
    for words, coef in (("my_rules:Later", 0.0), ("my_rules:Good", None), ("entropy_adv", 0.0)):
        assert vars(parse(job(f"AS {words}")))["actor.entropy_coef"] == coef
    assert vars(parse(job("AS my_rules:Later --actor.entropy_coef 0.1")))["actor.entropy_coef"] == 0.1
    assert "no effect" not in capsys.readouterr().err
    names = ("shear", "uniform", "entropy_adv", "prm_reshape", "pure", "my_rules:Good", "my_rules:Reader", "rloo")
    model = "--prm.model_name_or_path no-such/model --use_ms --algo.kl.init_coef 0"
    runs = [read(job(f"AS {name} {model}")).run for name in names]
    assert [run.estimator for run in runs if "prm_scores" in run.traits.needs] == ["prm_reshape", "pure", names[-2]]


def test_a_description_does_not_change(job):
    run = read(job("AS shear/window=50 --train.seed 3")).run
    assert (run.train.seed, run.flags["train.seed"], run.estimator) == (3, 3, "shear/window=50")
    for part, name in ((run, "device"), (run.train, "seed"), (run.actor.adam, "lr")):
        with pytest.raises(AttributeError, match=f"does not change: {name}"):
            setattr(part, name, 1)
        with pytest.raises(AttributeError):
            delattr(part, name)
    with pytest.raises(TypeError):
        run.flags["train.seed"] = 4
    assert run.with_flags({"train.seed": 4}).train.seed == 4 and run.train.seed == 3


def test_help_lists_every_knob_with_its_default_and_imports_nothing_heavy():
    run, loaded = run_fresh("train_ppo_ray", ["--help"])
    assert (run.returncode, loaded) == (0, [])
    text = " ".join(run.stdout.split())
    knobs = [("shear", knob) for knob in fields(ShearConfig)]
    knobs += [("credit", knob) for kind in (SearchConfig, OutcomeConfig) for knob in fields(kind)]
    for section, knob in knobs:
        _, _, entry = text.partition(f" --{section}.{knob.name} ")
        default = "unset" if knob.default is None else knob.default
        within = knob.metadata["within"]
        shown = f"({within}; default: {default})" if isinstance(within, Range) else f"(default: {default})"
        assert shown in entry.split(" --")[0], knob.name
    assert "--algo.advantage.estimator shear" in text
    assert "--pretrain" in text  # tells that the old spellings are accepted


def test_a_good_line_is_parsed_and_checked_without_heavy_imports(job):
    line = job(f"--actor.model_name_or_path {POLICY_DIR} --data.max_len 256")
    run, loaded = run_fresh("train_ppo_ray", line, function="parse")
    assert (run.returncode, run.stderr.strip(), loaded) == (0, "", [])


def test_a_run_that_ends_on_purpose_is_one_line_and_its_exit_code(job, capsys, monkeypatch):
    def launch(run, args):
        raise RefusedError("16 GPUs are needed")

    monkeypatch.setitem(sys.modules, "openrlhf_shear.train.start.launch", SimpleNamespace(launch=launch))
    with pytest.raises(SystemExit) as ended:
        main([*job(), "--verbose"])
    assert ended.value.code == 2 and capsys.readouterr().out.endswith("the run ended: 16 GPUs are needed\n")


def test_a_missing_openrlhf_is_one_clear_line(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(
        SystemExit, match=r"error: needs the extra \[cluster\]: OpenRLHF is not installed; use scripts/install_cluster"
    ):
        parse([])
