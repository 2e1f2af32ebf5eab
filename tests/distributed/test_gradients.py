"""Ray's actors apply a credit rule's gradient: that of one float32 pass with independently computed weights.

`tests/unit/train/test_gradients.py` has every way to cut a batch; here are whole steps, from rollouts and rewards.
"""

import gradients
import pytest
import torch
from transformers import AutoModelForCausalLM

from openrlhf_shear.credit import Credit, CreditRule, shear_weights
from openrlhf_shear.credit.captured import captured_lm_head_input

GROUPS = 4
# bfloat16 passes against float32 ones. Measured over the rows below, on two machines: 0.9987 to 0.9997, within 2.4%.
COSINE, NORM = 0.997, 0.04


def one_update(group, experiences) -> tuple[dict, dict, dict]:
    """Float32 master weights before and after an update, by name, and its metrics."""
    import ray

    def fit(actor):
        from deepspeed.utils import safe_get_full_fp32_param

        def weights():
            named = actor.actor.model.module.named_parameters()
            return {name: safe_get_full_fp32_param(value).detach().cpu().clone() for name, value in named}

        before = weights()
        status = actor.fit(kl_ctl=0.0)
        return before, weights(), status

    ray.get(group.async_run_method_batch(method_name="append", experience=experiences))
    return ray.get([actor.__ray_call__.remote(fit) for actor in group.actors])[0]


@pytest.fixture(scope="module")
def descending(actor_group, arguments):
    """Two ranks under ZeRO-2, the default, with dynamic batches; their steps are the gradient times a constant."""
    words = (
        *("--actor.num_gpus_per_node", "2", "--train.batch_size", str(4 * GROUPS), "--actor.max_norm", "0"),
        *("--actor.adam.lr", str(gradients.RATE), "--actor.adam.eps", str(gradients.EPSILON)),
        *("--actor.adam.betas", "0", "0", "--actor.lr_warmup_ratio", "0", "--train.dynamic_batch_enable"),
    )
    return actor_group(arguments(*words))


def set_rule(cluster, group, rule) -> None:
    """Give the group's actors another rule."""

    def change(actor):
        from openrlhf_shear.credit.groups import GroupCollector

        actor._rule, actor._collector = rule, GroupCollector(rule, rank=actor._rank)

    cluster.get([actor.__ray_call__.remote(change) for actor in group.actors])


def ramp() -> CreditRule:
    """A user's rule: weights from 0 to 2 over the response."""

    class Ramp(CreditRule):  # here, so that it travels to the actors whole
        name = "ramp"

        def credit(self, group):
            return Credit([torch.linspace(0.0, 2.0, length) for length in group.lengths])

    return Ramp()


def weights_of_shear(rollouts, weights: dict, config) -> list[torch.Tensor]:
    """SHEAR's, from what enters the LM head of the float32 model."""
    model, states = gradients.plain_model(AutoModelForCausalLM), []
    for rollout in rollouts:
        with torch.no_grad(), captured_lm_head_input(model) as captured:
            torch.func.functional_call(model, weights, (rollout["tokens"][None],))
        states.append(captured[0][0, 1:][rollout["actions"]])
    size, found = len(rollouts) // GROUPS, []
    for first in range(0, len(rollouts), size):
        right = [rollout["reward"] > 0.5 for rollout in rollouts[first : first + size]]
        found += shear_weights(states[first : first + size], right, config).weights
    return found


def with_advantages(samples, weigh, now: dict) -> list[dict]:
    """The rollouts as `gradients.oracle` takes them: GRPO's (r - mean) / (std + 1e-9) times the rule's weights."""
    rewards = torch.cat([sample.rewards for sample in samples]).double().view(GROUPS, -1)
    base = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-9)).flatten()
    made = []
    for sample in samples:
        row = {"tokens": sample.sequences[0], "actions": sample.action_mask[0].bool(), "kl": 0.0}
        made.append(row | {"reward": sample.rewards.item()})
    model = gradients.plain_model(AutoModelForCausalLM)
    for rollout, value, weights in zip(made, base, weigh(made), strict=True):
        advantages = torch.zeros(len(rollout["actions"]))
        advantages[rollout["actions"]] = (value * weights).float()
        with torch.no_grad():
            logits = torch.func.functional_call(model, now, (rollout["tokens"][None],)).logits[0]
        old = gradients.log_probs(logits, rollout["tokens"])
        rollout |= {"advantages": advantages, "action_log_probs": old, "base_action_log_probs": old}
    return made


@pytest.mark.parametrize("rule", ["group_norm", "shear", "a rule of a user's"])
def test_the_gradient_is_that_of_the_rules_advantages(cluster, descending, maker, rollouts, rule):
    from openrlhf.trainer.ppo_utils.experience import balance_experiences

    group, strategy = descending
    ours = maker(group, strategy, upstream=rule == "group_norm")
    if rule == "a rule of a user's":
        ours.rule = ramp()
        set_rule(cluster, group, ours.rule)
    experiences = balance_experiences(ours.make_experience_batch(rollouts(GROUPS)), strategy.args)
    before, after, status = one_update(group, experiences)

    now = {name: value.bfloat16().float() for name, value in before.items()}
    weigh = {
        "group_norm": lambda made: [torch.ones(int(row["actions"].sum())) for row in made],
        "shear": lambda made: weights_of_shear(made, now, strategy.args.credit.config),
        "a rule of a user's": lambda made: [torch.linspace(0, 2, int(row["actions"].sum())) for row in made],
    }
    wanted = gradients.oracle(
        gradients.Row(rule, bfloat16=True), before, with_advantages(rollouts(GROUPS), weigh[rule], now)
    )
    (found,) = gradients.applied_gradients([before, after])
    mine, its = (gradients.flat(gradient, before) for gradient in (found, wanted.gradient))
    cosine, norm = torch.nn.functional.cosine_similarity(mine, its, 0).item(), (mine.norm() / its.norm()).item()
    print(f"{rule}: cosine {cosine:.5f}, norm {norm:.4f}")
    assert cosine > COSINE and norm == pytest.approx(1.0, abs=NORM)
    loss, tokens = wanted.sums["policy_loss"]
    assert status["policy_loss"] == pytest.approx(loss / tokens, abs=0.01)
    assert status["actor_grad_norm"] == pytest.approx(wanted.sums["actor_grad_norm"][0], rel=NORM)
