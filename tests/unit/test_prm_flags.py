"""Flags of process reward models and of the rules that need one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_lines import check_refused, refusal, table

from openrlhf_shear.cli.train_ppo_ray import parse
from openrlhf_shear.config import CreditSpec, PrmConfig, PureConfig
from openrlhf_shear.preflight.rules import needs_prm

SHORT = {
    "RESHAPE": "ESTIMATOR prm_reshape --prm.model_name_or_path",
    "PURE": "ESTIMATOR pure --prm.model_name_or_path",
    "COLOCATED": "--train.colocate_all --vllm.num_engines 2 --ref.num_gpus_per_node 2",
    "ESTIMATOR": "--algo.advantage.estimator",
}


@pytest.fixture
def prm_job(job, prm, tmp_path, monkeypatch):
    """As `job`, with `SHORT` words; PRM stands for a model's folder, and `prm_rules` is a module of rules."""
    (tmp_path / "prm_rules.py").write_text(
        "from openrlhf_shear.credit import Credit, CreditRule\n"
        "class Plain(CreditRule):\n    name = 'plain'\n    def credit(self, group): return Credit([])\n"
        "class Reader(Plain):\n    needs = frozenset({'prm_scores'})\n"
        "class Maker(Plain):\n    makes_advantages = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def build(changes: str) -> list[str]:
        for word, meaning in (SHORT | {"PRM": str(prm)}).items():
            changes = changes.replace(word, meaning)
        return job(changes)

    return build


REFUSED = """
ESTIMATOR prm_reshape --algo.kl.init_coef 0
    prm.model_name_or_path is needed | prm_reshape
ESTIMATOR pure --algo.kl.init_coef 0
    prm.model_name_or_path is needed | pure
ESTIMATOR prm_rules:Reader --algo.kl.init_coef 0
    prm.model_name_or_path is needed | prm_rules:Reader
RESHAPE model
    prm.model_name_or_path is no process reward model | says None, not Qwen2ForProcessRewardModel
RESHAPE ./nowhere
    prm.model_name_or_path names a folder that is not there
RESHAPE .
    prm.model_name_or_path names a folder without config.json
RESHAPE PRM --prm.max_len 4097
    prm.max_len exceeds the model's 4096 positions | use at most 4096
RESHAPE PRM COLOCATED
    prm.num_gpus_per_node times prm.num_nodes must not exceed the 2 GPUs | --train.colocate_all: got 8
RESHAPE PRM COLOCATED --prm.num_gpus_per_node 2 --prm.num_nodes 2
    the 2 GPUs of the actor | got 4
RESHAPE PRM --train.async_enable
    asynchronous training, which estimator prm_reshape does not support
PURE PRM --rollout.n_samples_per_prompt 1
    must be greater than 1 for estimator pure
PURE PRM
    algo.kl.init_coef as a reward would be without effect: estimator pure | got 0.01; use 0, or
PURE PRM --algo.kl.init_coef 0 --reward.overlong_buffer_len 5
    reward.overlong_buffer_len would be without effect: estimator pure makes advantages of its own
PURE PRM --algo.kl.init_coef 0 --reward.stop_properly_penalty_coef 0
    reward.stop_properly_penalty_coef would be without effect
ESTIMATOR prm_rules:Maker
    algo.kl.init_coef as a reward | estimator prm_rules:Maker
RESHAPE PRM --prm.max_len 0
    prm.max_len must be at least 1 | got 0
RESHAPE PRM --prm.num_nodes 0
    prm.num_nodes must be at least 1 | got 0
RESHAPE PRM --prm.num_gpus_per_node 0
    prm.num_gpus_per_node must be at least 1 | got 0
RESHAPE PRM --prm.micro_batch_size 0
    prm.micro_batch_size must be at least 1 | got 0
RESHAPE PRM --prm.offload
    prm.offload is ZeRO-3's: got True; use --ds.zero_stage 3 too
RESHAPE PRM --prm.separator=
    prm.separator must be ASCII text
PURE PRM --pure.temperature 0
    pure.temperature must be a positive number: got 0.0
PURE PRM --pure.temperature inf
    pure.temperature must be a positive number: got inf
PURE PRM --pure.verifiable_coef -1
    pure.verifiable_coef must be at least 0: got -1.0
PURE PRM --pure.width 0
    pure.width must be at least 1: got 0
"""


@pytest.mark.parametrize(("changes", "parts"), table(REFUSED))
def test_refused(prm_job, capsys, changes, parts):
    check_refused(capsys, prm_job(changes), parts)


@pytest.mark.parametrize(
    "changes",
    [
        "RESHAPE PRM --prm.max_len 4096",
        "RESHAPE PRM COLOCATED --prm.num_gpus_per_node 2",
        "RESHAPE PRM --algo.kl.init_coef 0.5 --reward.overlong_buffer_len 5 --reward.stop_properly_penalty_coef 0",
        "PURE PRM --algo.kl.init_coef 0",
        "PURE PRM --algo.kl.init_coef 0.5 --algo.kl.use_loss",
        "ESTIMATOR prm_rules:Reader --prm.model_name_or_path PRM --prm.max_len 100",
        "ESTIMATOR prm_rules:Plain",
        "ESTIMATOR prm_rules:Plain COLOCATED",  # its 8 GPUs are not asked for
        "RESHAPE some/model --use_ms",
    ],
)
def test_not_refused(prm_job, capsys, changes):
    assert vars(parse(prm_job(changes)))["algo.advantage.estimator"] == "group_norm"
    assert "no effect" not in capsys.readouterr().err


@pytest.mark.parametrize("config", [{"architectures": ["Qwen2ForCausalLM"]}, {"architectures": None}, "{", [1]])
def test_a_config_of_anything_else_is_refused_in_a_line_that_names_the_flag(prm_job, capsys, config):
    Path("model/config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    assert "prm.model_name_or_path " in refusal(capsys, prm_job("RESHAPE model"))


def test_a_model_on_the_hub_is_looked_at_too(prm, prm_job, capsys, monkeypatch):
    import huggingface_hub

    found = {"some/prm": str(prm / "config.json"), "some/policy": "model/config.json"}
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file: found[name])
    assert parse(prm_job("RESHAPE some/prm")).credit.prm.model_name_or_path == "some/prm"
    assert "says None, not Qwen2For" in refusal(capsys, prm_job("RESHAPE some/policy"))
    told = refusal(capsys, prm_job("RESHAPE some/prm --prm.max_len 5000"))
    assert "the model's 4096 positions: got 5000" in told


def test_what_the_flags_say_is_what_the_workers_get(prm, prm_job):
    args = parse(prm_job("RESHAPE PRM"))
    assert args.credit == CreditSpec("prm_reshape", prm=PrmConfig(model_name_or_path=str(prm)))
    assert args.credit.prm.step_end == "\n\n" and args.credit.prm.max_len == 4096
    flags = ("num_nodes 2", "num_gpus_per_node 1", "micro_batch_size 3", "max_len 99", "separator ;", "offload")
    args = parse(prm_job(f"RESHAPE PRM --ds.zero_stage 3 {' '.join('--prm.' + flag for flag in flags)}"))
    assert args.credit.prm == PrmConfig(str(prm), 2, 1, 3, 99, ";", True)
    assert not [name for name in vars(args) if name.startswith(("prm.", "pure."))]


def test_the_width_of_pure_is_the_longest_response_unless_given(prm_job):
    line = "PURE PRM --algo.kl.init_coef 0"
    assert parse(prm_job(f"{line} --rollout.max_new_tokens 77")).credit.config == PureConfig(width=77)
    knobs = "--pure.width 5 --pure.temperature 0.5 --pure.verifiable_coef 2"
    spec = parse(prm_job(f"{line} --rollout.max_new_tokens 77 {knobs}")).credit
    assert spec.config == PureConfig(temperature=0.5, verifiable_coef=2.0, width=5)
    assert parse(prm_job(line)).credit.config.width is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ("--prm.max_len 100", "--prm.max_len has no effect with {} shear; use {} prm_reshape or pure"),
        ("ESTIMATOR group_norm --pure.width 5", "--pure.width has no effect with {} group_norm; use {} pure"),
        (
            "ESTIMATOR error_odds --error_odds.rise 3 --shear.backend torch --shear.stride 9",
            "--shear.stride has no effect with {} error_odds; use {} shear",
        ),
        ("RESHAPE PRM --pure.width 5", "--pure.width has no effect with {} prm_reshape; use {} pure"),
    ],
)
def test_flags_without_effect_are_warned_of(prm_job, capsys, changes, said):
    parse(prm_job(changes))
    assert capsys.readouterr().err == f"[Warning] {said.replace('{}', '--algo.advantage.estimator')}\n"


def test_which_rules_need_a_process_reward_model(prm_job):
    built_in = ("shear", "uniform", "error_odds", "entropy_adv", "prm_reshape", "pure")
    names = (*built_in, "prm_rules:Plain", "prm_rules:Reader")
    assert [name for name in names if needs_prm(name)] == ["prm_reshape", "pure", "prm_rules:Reader"]
    assert needs_prm("group_norm") is False
