"""Credit rules in verl: its FSDP worker, estimators and DataProto on a CPU; the weights are `shear_weights`'."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from cpu_worker import batch, optimizer, rollouts, worker
from omegaconf import OmegaConf
from own_processes import PATIENCE, TWO, said_by
from transformers import AutoModelForCausalLM
from verl import DataProto
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig, PolicyLossConfig
from verl.workers.utils import losses
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import response_from_nested

from openrlhf_shear.config import ShearConfig
from openrlhf_shear.credit import Credit, CreditRule, shear_weights
from openrlhf_shear.credit.token_gradients import CreditLostError
from openrlhf_shear.integrations.verl import FIELDS, RuleRequest, ShearTrainer, ShearWorker, refuse_unfit, weighed
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR

HERE = Path(__file__).parent
REQUEST = RuleRequest("shear/window=8/stride=4", 0.5, 1)
CONFIG = ShearConfig(window=8, stride=4)


@pytest.fixture(scope="module")
def plain():
    return AutoModelForCausalLM.from_pretrained(POLICY_DIR, dtype=torch.float32).eval()


@torch.no_grad()
def expected_weights(model, rows) -> list[torch.Tensor]:
    """`shear_weights` of rows, which are group after group, one sequence at a time and without padding."""
    states = []
    for row in rows:
        hidden = model(input_ids=torch.tensor([[*row["prompt"], *row["response"]]]), output_hidden_states=True)
        states.append(hidden.hidden_states[-1][0, len(row["prompt"]) :][torch.tensor(row["mask"]).bool()])
    weights = {}
    for uid in dict.fromkeys(row["uid"] for row in rows):
        here = [i for i, row in enumerate(rows) if row["uid"] == uid]
        correct = [rows[i]["score"] >= 0.5 for i in here]
        weights |= zip(here, shear_weights([states[i] for i in here], correct, CONFIG).weights, strict=True)
    return [weights[i] for i in range(len(rows))]


def test_verl_takes_the_trainer_for_its_synchronous_one(monkeypatch):
    """Its replay buffer, refills and checkpoints depend on the word in the configuration."""
    modes = []
    monkeypatch.setattr(PPOTrainerSync, "__init__", lambda self, config: modes.append(config.trainer.v1.trainer_mode))
    monkeypatch.setattr(ShearTrainer, "read_credit", lambda self, config: None)
    assert get_trainer_cls("shear") is ShearTrainer
    ShearTrainer(OmegaConf.create({"trainer": {"v1": {"trainer_mode": "shear"}}}))
    assert modes == ["sync"]


@pytest.mark.parametrize(
    "settings",
    [{"packed": False}, {"packed": True}, {"packed": True, "dynamic": True}],
    ids=["padded", "packed", "dynamic"],
)
def test_the_workers_weights_are_those_of_shear_weights(plain, settings):
    rows, made = rollouts(), worker(**settings)
    output = made.compute_log_prob(batch(rows, credit=REQUEST))
    expected = expected_weights(plain, rows)
    assert sum(len(weight) for weight in expected) > 500 and torch.cat(expected).std() > 0.1
    for i, weight in enumerate(expected):
        mask = torch.tensor(rows[i]["mask"]).bool()
        assert len(output["credit_positive"][i]) == len(mask)
        assert torch.allclose(output["credit_positive"][i][mask], weight, rtol=1e-4, atol=1e-5)
        assert torch.equal(output["credit_negative"][i], -output["credit_positive"][i])
        assert (output["credit_positive"][i][~mask] == 1).all()
    assert json.loads(tu.get(output, "credit_metrics")[0])["shear/omega_mean"] > 0


def test_log_probs_are_verls_own_and_nothing_is_left_behind():
    rows, made = rollouts(), worker()
    forward_step = made.actor.engine.forward_step
    theirs, ours = made.compute_log_prob(batch(rows)), made.compute_log_prob(batch(rows, credit=REQUEST))
    for field in ("log_probs", "entropy"):
        assert all(torch.equal(a, b) for a, b in zip(theirs[field].unbind(), ours[field].unbind(), strict=True))
    assert "credit_positive" not in theirs
    assert made.actor.engine.forward_step == forward_step
    assert not made.actor.engine.module.base_model._forward_hooks


def test_lora_states_are_those_with_the_adapters(plain):
    rows, made = rollouts(), worker(lora=4)
    before = made.compute_log_prob(batch(rows, credit=REQUEST))["credit_positive"].values()
    for name, parameter in made.actor.engine.module.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    after = made.compute_log_prob(batch(rows, credit=REQUEST))["credit_positive"].values()
    mask = torch.cat([torch.tensor(row["mask"]).bool() for row in rows])
    assert torch.allclose(before[mask], torch.cat(expected_weights(plain, rows)), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(before, after, rtol=1e-2)


def updated(made, loss_mode: str) -> None:
    """One update by verl's own loss, in mini-batches and micro-batches, on rows with their credit."""
    rows = rollouts()
    output = made.compute_log_prob(batch(rows, credit=REQUEST))
    data = batch(rows, mini_batch_size=6, global_batch_size=12)
    data["old_log_probs"] = response_from_nested(output["log_probs"], data["response_mask"])
    for field in FIELDS:
        data[field] = output.get(field)
    data["advantages"] = data[FIELDS[0]]
    sizes = {"rollout_n": 4, "ppo_mini_batch_size": 12, "ppo_micro_batch_size_per_gpu": 2, "use_dynamic_bsz": False}
    more = {"loss_mode": loss_mode, "dro_beta": 0.1}
    loss = PolicyLossConfig(**{name: value for name, value in more.items() if name in PolicyLossConfig.__annotations__})
    config = FSDPActorConfig(strategy="fsdp2", optim=optimizer(), policy_loss=loss, **sizes)
    made.actor.set_loss_fn(partial(ppo_loss, config=config))
    made.actor.engine_config.micro_batch_size_per_gpu = 2
    made.update_actor(data)


LOSSES = ("vanilla", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "cispo", "dppo_tv", "dppo_kl", "dro")


@pytest.mark.parametrize("loss_mode", LOSSES)
def test_every_loss_carries_the_credit_of_tokens_and_trains(loss_mode, capsys):
    made, policy_loss_of = worker(), losses.get_policy_loss_fn
    before = [parameter.full_tensor().clone() for parameter in made.actor.engine.module.parameters()]
    updated(made, loss_mode)
    after = [parameter.full_tensor() for parameter in made.actor.engine.module.parameters()]
    assert not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert made.probe.done and losses.get_policy_loss_fn is policy_loss_of
    assert "of the token credit of algorithm.credit is in the gradient of" in capsys.readouterr().out


def test_a_loss_that_loses_the_credit_of_tokens_ends_the_first_update():
    """By the gradient, not by the name: `refuse_unfit` knows this one."""
    with pytest.raises(CreditLostError, match=r"only -?0\.000 of the token credit"):
        updated(worker(), "geo_mean")


def test_the_reward_that_decides_correctness_can_be_named(capsys):
    """With a format reward of 0.5 all scores are at least 0.5; the accuracy in reward_extra_info is not."""
    rows = rollouts()
    sums = [row | {"score": row["score"] + 0.5} for row in rows]
    plain = worker().compute_log_prob(batch(rows, credit=REQUEST))["credit_positive"].values()
    alike = worker().compute_log_prob(batch(sums, credit=REQUEST))["credit_positive"].values()
    assert (
        alike == 1
    ).all() and "scores 0.5, 1.5 are at least algorithm.correct_threshold 0.5" in capsys.readouterr().out
    data = batch(sums, credit=replace(REQUEST, reward="acc"))
    with pytest.raises(
        ValueError, match=r"algorithm\.correct_reward=acc: reward_extra_info has no such entry; it has none"
    ):
        worker().compute_log_prob(data)
    data = batch(sums, credit=replace(REQUEST, reward="acc"))
    infos = [{"reward_extra_info": {"acc": row["score"]}} for row in rows]
    tu.assign_non_tensor_stack(data, "extra_fields", infos)
    assert torch.equal(worker().compute_log_prob(data)["credit_positive"].values(), plain)


class Telling(CreditRule):
    """Weights that differ by the sign of the advantage; `seen` are the groups."""

    name = "telling"
    needs = frozenset({"log_probs", "entropies", "token_ids", "token_texts"})
    seen = []  # noqa: RUF012

    def __init__(self, up=2.0, down=3.0):
        self.up, self.down = up, down

    def credit(self, group):
        self.seen.append(group)
        weights = [[torch.full((n,), by) for n in group.lengths] for by in (self.up, self.down)]
        return Credit(weights[0], negative_weights=weights[1])


def test_a_rule_of_a_users_by_the_same_grammar(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    import test_verl as here  # as the rule's module is imported

    here.Telling.seen.clear()
    rows, made = rollouts(), worker()
    output = made.compute_log_prob(batch(rows, credit=RuleRequest("test_verl:Telling/up=4", 0.5, 9)))
    mask = torch.tensor(rows[0]["mask"]).bool()
    assert (output["credit_positive"][0][mask] == 4).all() and (output["credit_negative"][0][mask] == -3).all()
    group = next(group for group in here.Telling.seen if group.number == 0)
    kept = torch.tensor(rows[0]["response"])[mask]
    assert torch.equal(group.token_ids[0], kept) and group.step == 9
    assert "".join(group.token_texts[0]) == made.actor.model_config.tokenizer.decode(kept)
    start, end = len(rows[0]["prompt"]) - 1, len(rows[0]["prompt"]) + len(mask) - 1
    assert torch.equal(group.log_probs[0], output["log_probs"][0][start:end][mask])
    assert torch.equal(group.entropies[0], output["entropy"][0][start:end][mask])


# ── The estimator ──


def protocol(rows) -> DataProto:
    width = max(len(row["response"]) for row in rows)
    pad = lambda values, fill: values + [fill] * (width - len(values))  # noqa: E731
    scores = [pad([0.0] * (len(row["response"]) - 1) + [row["score"]], 0.0) for row in rows]
    tensors = {"token_level_rewards": torch.tensor(scores)}
    tensors["response_mask"] = torch.tensor([pad(row["mask"], 0) for row in rows])
    return DataProto.from_dict(tensors, {"uid": np.array([row["uid"] for row in rows], dtype=object)})


def test_weights_of_one_give_verls_grpo_bit_for_bit():
    for normed in (True, False):
        config = OmegaConf.create({"norm_adv_by_std_in_grpo": normed})
        theirs = compute_advantage(protocol(rollouts()), "grpo", norm_adv_by_std_in_grpo=normed, config=config)
        mask = theirs.batch["response_mask"].float()
        with weighed(torch.ones_like(mask), -torch.ones_like(mask)):
            ours = compute_advantage(protocol(rollouts()), "shear", config=config)
        assert torch.equal(theirs.batch["advantages"], ours.batch["advantages"]) and ours.batch["advantages"].any()
        assert torch.equal(theirs.batch["returns"], ours.batch["returns"])


def test_the_estimator_multiplies_by_the_workers_weights():
    rows, made = rollouts(), worker()
    output = made.compute_log_prob(batch(rows, credit=RuleRequest("shear/window=8/stride=4", 0.5, 1)))
    config = OmegaConf.create({"credit": "shear/window=8/stride=4"})
    base = compute_advantage(protocol(rows), "grpo", config=config).batch["advantages"]
    positive, negative = (output[f"credit_{sign}"].to_padded_tensor(0) for sign in ("positive", "negative"))
    with weighed(positive, negative):
        found = compute_advantage(protocol(rows), "shear", config=config).batch["advantages"]
    assert torch.equal(found, base * positive) and not torch.equal(found, base)


def test_negative_weights_and_advantages_of_a_rules_own(monkeypatch):
    rows = rollouts()
    base = compute_advantage(protocol(rows), "grpo", config=OmegaConf.create({})).batch["advantages"]
    ones = torch.ones_like(base)
    with weighed(2 * ones, -3 * ones):
        found = compute_advantage(protocol(rows), "shear", config=OmegaConf.create({})).batch["advantages"]
    assert torch.equal(found, torch.where(base < 0, 3 * base, 2 * base))


def test_the_estimator_without_the_trainer_says_what_is_missing():
    with pytest.raises(RuntimeError, match=r"adv_estimator=shear needs .* use trainer.v1.trainer_mode=shear"):
        compute_advantage(protocol(rollouts()), "shear", config=OmegaConf.create({}))


# ── The trainer ──


def configuration(credit="shear", **more):
    algorithm = {"credit": credit, "adv_estimator": "shear"}
    config = {"actor_rollout_ref": {"actor": {"strategy": "fsdp2"}}, "algorithm": algorithm}
    return OmegaConf.merge(OmegaConf.create(config), OmegaConf.create(more))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (configuration("sheer"), "did you mean shear"),
        (configuration("entropy_adv"), "entropy_adv acts in the update"),
        (configuration("pure"), "pure needs a process reward model"),
        (configuration(actor_rollout_ref={"actor": {"strategy": "megatron"}}), "actor.strategy is megatron"),
        (
            configuration(actor_rollout_ref={"actor": {"policy_loss": {"loss_mode": "geo_mean"}}}),
            "geo_mean gives all tokens of a response their mean advantage.*use loss_mode=gspo",
        ),
        (configuration(algorithm={"adv_estimator": "gae"}), "adv_estimator is gae, which ignores credit"),
        (configuration("ktae", algorithm={"use_kl_in_reward": True}), "use_kl_in_reward has no effect"),
        (configuration(algorithm={"rollout_correction": {"bypass_mode": True}}), "leaves out the forward pass"),
    ],
)
def test_what_cannot_be_is_refused(config, said):
    with pytest.raises(ValueError, match=said):
        refuse_unfit(config, config.algorithm.credit)


def test_the_trainer_is_registered_and_puts_the_worker_in_place():
    assert get_trainer_cls("shear") is ShearTrainer
    made = ShearTrainer.__new__(ShearTrainer)
    made.config = OmegaConf.load(
        Path(sys.modules["verl"].__file__).parent / "trainer/config/_generated_ppo_trainer.yaml"
    )
    made.config.algorithm.adv_estimator = "shear"
    made._init_resource_pool_mgr()
    (worker_class,) = made.role_worker_mapping.values()
    assert issubclass(worker_class.__ray_metadata__.modified_class, ShearWorker)


def test_every_process_of_verl_imports_it():
    code = (
        "import verl; from verl.trainer.ppo.core_algos import get_adv_estimator_fn as g; print(g('shear').__module__)"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("VERL_")}
    env["VERL_USE_EXTERNAL_MODULES"] = "openrlhf_shear.integrations.verl"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=200 * PATIENCE)
    assert done.stdout.strip().endswith("openrlhf_shear.integrations.verl"), done.stderr


@pytest.mark.parametrize("script", ["two_ranks.py", "a_step.py"])
def test_in_processes_of_its_own(script, tmp_path):
    """Groups cut between two data-parallel ranks; a step of the trainer over a real TransferQueue."""
    said = said_by(tmp_path, HERE / script, before=TWO if script == "two_ranks.py" else ())
    assert "as shear_weights says" in said, said[-3000:]
