"""Rules that try to gain by more than their credit: each is refused by the trainer, or marked on the leaderboard."""

import gc
import random

import numpy as np
import pytest
import torch

from openrlhf_shear.credit.checks import CreditRuleError
from openrlhf_shear.credit.rule import Credit, CreditRule, UpdateRule
from openrlhf_shear.lab import trainer
from openrlhf_shear.lab.policy import Policy
from openrlhf_shear.lab.rollouts import Rollouts
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.variants import parse_rules
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR

SETTINGS = LabSettings(steps=1, prompts=2, samples_per_prompt=4, eval_problems=2, eval_samples=1, precision="float32")


of_others: set[int] = set()  # objects of other tests, which a cheat leaves alone


@pytest.fixture(autouse=True)
def leave_others_alone():
    of_others.update(id(each) for kind in (Policy, Rollouts) for each in every(kind))
    yield
    of_others.clear()


def every(kind):
    return [each for each in gc.get_objects() if type(each) is kind and id(each) not in of_others]


def weights(group):
    for policy in every(Policy):
        with torch.no_grad():
            next(policy.model.parameters()).add_(1e-3)


def masters(group):
    for policy in every(Policy):
        policy._weights[0].add_(1e-3)


def faster(group):
    for policy in every(Policy):
        policy._optimizer.param_groups[0]["lr"] *= 10


def momentum(group):
    for policy in every(Policy):
        policy._optimizer.state[policy._weights[0]]["step"] = torch.tensor(3.0)


def listener(group):
    for policy in every(Policy):
        policy.model.register_forward_hook(lambda *_: None)


def outcomes(group):
    for rollouts in every(Rollouts):
        object.__setattr__(rollouts, "correct", (True,) * len(rollouts.correct))


def tokens(group):
    for rollouts in every(Rollouts):
        rollouts.sequences[:, -1] = 0


def states(group):
    group.hidden_states[0].zero_()


def states_by_numpy(group):
    group.hidden_states[0].numpy()[:] = 0


def torch_draws(group):
    torch.manual_seed(7)


def numpy_draws(group):
    np.random.seed(7)


def python_draws(group):
    random.seed(7)


CHEATS = {
    weights: "the policy",
    masters: "the policy",
    faster: "the optimizer",
    momentum: "the optimizer",
    listener: "the policy",
    outcomes: "its input",
    states: "its input",
    states_by_numpy: "its input",
    tokens: "its input",
    torch_draws: "torch's random numbers",
    numpy_draws: "numpy's",
    python_draws: "Python's",
}


class Cheat(CreditRule):
    name, needs, act = "cheat", frozenset({"hidden_states"}), None

    def credit(self, group):
        type(self).act(group)
        return Credit([torch.ones(length) for length in group.lengths])


class CheatInTheUpdate(UpdateRule):
    name, needs = "cheat", frozenset()

    def advantages(self, advantages, mask, *_):
        faster(None)
        return advantages, {}


def train(monkeypatch, rule):
    (variant,) = parse_rules("uniform")
    monkeypatch.setattr(type(variant), "rule", lambda *_: rule)
    return trainer.train(SETTINGS, variant, 0, POLICY_DIR)


@pytest.mark.parametrize(("act", "named"), CHEATS.items(), ids=[act.__name__ for act in CHEATS])
def test_a_rule_that_changes_more_than_its_output_is_refused(monkeypatch, act, named):
    monkeypatch.setattr(Cheat, "act", staticmethod(act))
    with pytest.raises(CreditRuleError, match=f"cheat changed {named}; a rule may only return its credit"):
        train(monkeypatch, Cheat())


def test_so_is_a_rule_of_the_update(monkeypatch):
    with pytest.raises(CreditRuleError, match="cheat changed the optimizer"):
        train(monkeypatch, CheatInTheUpdate())


@pytest.mark.parametrize(
    ("owner", "name"), [(trainer, "sample"), (trainer, "policy_loss"), (Policy, "update"), (torch.optim.AdamW, "step")]
)
def test_so_is_a_rule_that_replaces_code(monkeypatch, owner, name):
    there = getattr(owner, name)
    monkeypatch.setattr(owner, name, there)  # restored at the end
    monkeypatch.setattr(Cheat, "act", staticmethod(lambda _: setattr(owner, name, lambda *a, **k: there(*a, **k))))
    with pytest.raises(CreditRuleError, match=rf"uniform replaced .*\b{name}; a rule may only"):
        train(monkeypatch, Cheat())


@pytest.mark.parametrize(
    ("words", "marked"),
    [
        ("from openrlhf_shear.tasks.arithmetic import task", True),
        ("from openrlhf_shear import tasks", True),
        ("import openrlhf_shear.lab.values as v", True),
        ("import openrlhf_shear.credit.rule", False),
    ],
)
def test_a_rule_that_imports_what_knows_the_errors_is_an_oracle(tmp_path, monkeypatch, words, marked):
    body = "class Mine(CreditRule):\n    name, needs = 'mine', frozenset()\n    def credit(self, group): ...\n"
    (tmp_path / "knowing_rule.py").write_text(f"from openrlhf_shear.credit.rule import CreditRule\n{words}\n{body}")
    monkeypatch.syspath_prepend(tmp_path)
    (variant,) = parse_rules("knowing_rule:Mine")
    assert variant.reads_truth(SETTINGS) == marked
    import sys

    sys.modules.pop("knowing_rule")
