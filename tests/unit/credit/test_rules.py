"""The interface of credit rules: what a rule is given, what is refused, and rules from outside the package."""

import math
import types
from pathlib import Path

import pytest
import torch
from cases import cases

from examples.rules import surprise_rule
from openrlhf_shear.config import RULES, CreditSpec
from openrlhf_shear.config.names import is_rule
from openrlhf_shear.credit import Credit, CreditRule, UpdateRule
from openrlhf_shear.credit.apply import shaped_advantages
from openrlhf_shear.credit.checks import CreditRuleError, checked_credits, checked_over_batch
from openrlhf_shear.credit.groups import CreditRequest, GroupCollector, step_metrics
from openrlhf_shear.credit.registry import load_rule
from openrlhf_shear.credit.rule import RolloutGroup, StepScores
from openrlhf_shear.credit.rules.prm_reshape import PrmReshapeRule
from openrlhf_shear.credit.rules.pure import PureRule

ROOT = Path(__file__).parents[3]
LENGTHS = (5, 3)
NAN = float("nan")


def through(rule: CreditRule, **tensors):
    """A group of two rollouts, 5 and 3 tokens, through a collector, as its rule's needs say."""
    collector = GroupCollector(rule)
    request = CreditRequest((2, 3), (1, 1), rewards=(1.0, 0.0), correct=(True, False), group_size=2)
    collector.add(request, LENGTHS, tensors)
    (credit,) = collector.take()
    return credit


def states():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(length, 4, generator=generator) for length in LENGTHS]


def ones(*lengths):
    return [torch.ones(length) for length in lengths]


def test_uniform_is_one_everywhere_and_needs_nothing():
    rule = load_rule(CreditSpec("uniform"))
    credit = through(rule)
    assert [weight.tolist() for weight in credit.weights] == [[1.0] * 5, [1.0] * 3]
    assert step_metrics(rule, [credit], seconds=0.5) == {
        **{"uniform/weight_mean": 1.0, "uniform/weight_min": 1.0, "uniform/weight_max": 1.0},
        **{"uniform/mixed_groups": 1.0, "uniform/credit_seconds": 0.5},
    }
    assert checked_over_batch(rule, advantages := ones(2)) is advantages


class Told(CreditRule):
    """Keeps its group; says what it was told to, of a group and of a batch."""

    name = "told"

    def __init__(self, answer=None, makes_advantages=False, needs=()):
        self.answer, self.makes_advantages, self.needs = answer, makes_advantages, frozenset(needs)

    def credit(self, group):
        self.group = group
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def over_batch(self, advantages):
        return self.credit(None)


def test_what_a_rule_is_given():
    log_probs = [-torch.rand(length) for length in LENGTHS]
    rule = Told(Credit(ones(*LENGTHS)), needs={"hidden_states", "log_probs"})
    through(rule, hidden_states=states(), log_probs=log_probs)
    group = rule.group
    assert (group.number, group.rewards, group.correct, group.lengths) == (1, (1.0, 0.0), (True, False), LENGTHS)
    assert all(map(torch.equal, group.log_probs, log_probs)) and all(map(torch.equal, group.hidden_states, states()))


GOOD, BROKEN = ones(5, 3), [torch.tensor([1.0, NAN, -torch.inf, 0, 0]), torch.ones(3)]


@pytest.mark.parametrize(
    ("makes_advantages", "answer", "said"),
    [
        (True, Credit(GOOD), "makes_advantages = True a Credit must have advantages: got weights"),
        (True, Credit(GOOD, advantages=GOOD), "must have advantages: got advantages, weights"),
        (True, Credit(advantages=GOOD, negative_weights=GOOD), "must have advantages: got advantages, negative_weight"),
        (True, Credit(), "must have advantages: got none"),
        (False, Credit(advantages=GOOD), "makes_advantages = False a Credit must have weights: got advantages"),
        (False, Credit(GOOD, advantages=GOOD), "must have weights: got advantages, weights"),
        (False, Credit(negative_weights=GOOD), "must have weights: got negative_weights"),
        (True, Credit(advantages=ones(5)), "2 rollouts need as many advantages: got 1"),
        (True, Credit(advantages=torch.ones(2, 3)), "2 rollouts need as many advantages: got Tensor"),
        (True, Credit(advantages=BROKEN), "2 of 5 advantages of rollout 0 are NaN or infinite"),
        (False, Credit(ones(5, 4)), r"weights of rollout 1 must be a tensor \(3,\): got \(4,\)"),
        (False, Credit([torch.ones(5, 1), torch.ones(3)]), r"rollout 0 must be a tensor \(5,\): got \(5, 1\)"),
        (False, Credit([[1.0] * 5, torch.ones(3)]), r"rollout 0 must be a tensor \(5,\): got list"),
        (False, Credit(BROKEN), "2 of 5 weights of rollout 0 are NaN or infinite"),
        (False, Credit(GOOD, negative_weights=ones(5)), "2 rollouts need as many negative weights: got 1"),
        (False, Credit(GOOD, negative_weights=BROKEN), "2 of 5 negative weights of rollout 0 are NaN or infinite"),
        (False, KeyError("oops"), "it raised KeyError: 'oops'"),
        (False, GOOD, "must return a Credit: got list"),
    ],
)
def test_what_is_no_credit_is_an_error_that_names_the_rule_and_the_group(makes_advantages, answer, said):
    with pytest.raises(CreditRuleError, match=rf"credit rule told \(.*:Told\), group 1: .*{said}"):
        through(Told(answer, makes_advantages))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda groups: 1 / 0, "told .*, groups 4, 7: it raised ZeroDivisionError"),
        (lambda groups: [Credit(GOOD)], r"groups 4, 7: credits\(\) must return a list with a Credit for each group"),
        (lambda groups: (Credit(GOOD),) * 2, r"groups 4, 7: credits\(\) must return a list"),
        (lambda groups: [Credit(GOOD), Credit(BROKEN)], "group 7: 2 of 5 weights of rollout 0 are NaN or infinite"),
    ],
)
def test_what_is_no_credit_of_several_groups_is_an_error_that_names_them(answer, said, monkeypatch):
    monkeypatch.setattr(Told, "credits", lambda self, groups: answer(groups), raising=False)
    given = [RolloutGroup(number, (1.0, 0.0), (True, False), LENGTHS) for number in (4, 7)]
    with pytest.raises(CreditRuleError, match=said):
        checked_credits(Told(), given)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (KeyError("oops"), "it raised KeyError: 'oops'"),
        (None, "2 rollouts need as many advantages: got NoneType"),
        (ones(5, 3, 1), "2 rollouts need as many advantages: got 3"),
        (ones(5, 1), r"advantages of rollout 1 must be a tensor \(3,\): got \(1,\)"),
        (BROKEN, "2 of 5 advantages of rollout 0 are NaN or infinite"),
    ],
)
def test_what_is_no_batch_of_advantages_is_an_error_that_names_the_rule(answer, said):
    with pytest.raises(CreditRuleError, match=rf"credit rule told \(.*:Told\), over the batch: .*{said}"):
        checked_over_batch(Told(answer, makes_advantages=True), GOOD)


def test_metrics_of_a_rule_are_means_over_groups():
    rule = Told(Credit([torch.tensor([0.0, 1, 1, 1, 2]), torch.ones(3)], {"spread": 3.0}))
    credit = through(rule)
    rule.answer = Credit(GOOD, {"spread": 1.0, "extra": 7.0})
    metrics = step_metrics(rule, [credit, through(rule)], seconds=0.0)
    assert metrics["told/spread"] == 2.0 and metrics["told/extra"] == 7.0
    assert (metrics["told/weight_min"], metrics["told/weight_max"]) == (0.0, 2.0)


class Actor(torch.nn.Module):
    """Stands for OpenRLHF's actor: log-probs of the last 3 columns, entropies of all 4."""

    def forward(self, entropies):
        return entropies[:, -3:], types.SimpleNamespace(entropy=entropies)


class Loss(torch.nn.Module):
    def forward(self, log_probs, old_log_probs, advantages, action_mask=None):
        return advantages


class Shift(UpdateRule):
    name = "shift"

    def __init__(self, answer=None):
        self.answer = answer

    def advantages(self, advantages, entropies, mask):
        assert not entropies.requires_grad and entropies.shape == advantages.shape == mask.shape
        return advantages + entropies if self.answer is None else self.answer, {"seen": float(mask.sum())}


def loss_of(actor, loss):
    """What a micro-batch's loss is called with, whose own advantages are 0."""
    log_probs, _ = actor(torch.arange(8.0).reshape(2, 4).requires_grad_())
    zeros = torch.zeros(2, 3)
    return loss(log_probs, zeros, zeros, action_mask=torch.tensor([[1, 1, 0], [1, 0, 0]]))


def test_a_rule_in_the_update_replaces_what_the_loss_is_called_with():
    actor, loss, metrics = Actor(), Loss(), []
    with shaped_advantages(Shift(), actor, loss, metrics):
        assert loss_of(actor, loss).tolist() == [[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]]
    assert metrics == [{"shift/seen": 3.0}]
    assert not loss_of(actor, loss).any() and len(metrics) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (torch.zeros(2, 2), r"must be a tensor \(2, 3\): got \(2, 2\)"),
        (1.0, r"must be a tensor \(2, 3\): got float"),
        (torch.full((2, 3), float("nan")), "3 advantages are NaN or infinite"),
    ],
)
def test_what_is_no_advantage_is_an_error_before_the_loss(answer, said):
    actor, loss = Actor(), Loss()
    error = pytest.raises(CreditRuleError, match=rf"credit rule shift \(.*:Shift\), in the update: .*{said}")
    with error, shaped_advantages(Shift(answer), actor, loss, []):
        loss_of(actor, loss)


def test_the_example_rule():
    log_probs = [torch.tensor([-0.0, -1.0, -9.0, -0.5, -2.0]), torch.tensor([-1.0, -1.0, -1.0])]
    credit = through(surprise_rule.SurpriseRule(), log_probs=log_probs)
    surprise = [0.0, 0.2, 1.0, 0.1, 0.4]
    expected = [1 + s - sum(surprise) / 5 for s in surprise]
    assert credit.weights[0].tolist() == pytest.approx(expected) and credit.weights[1].tolist() == [1.0] * 3
    assert credit.metrics["surprise"] == pytest.approx((sum(surprise) / 5 + 0.2) / 2)
    assert len(Path(surprise_rule.__file__).read_text().splitlines()) < 40


def test_names_of_rules():
    assert all(map(is_rule, (*RULES, "a.b:C", "a:C/power=2", "shear/window=4", "error_odds")))
    assert not any(map(is_rule, ("group_norm", "a.b.C", "a.b:", ":C", "http://a:80", "a b:C")))


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(*cases("credit", "test_a_rule_that_cannot_be_had_is_refused_with_the_reason"))
def test_a_rule_that_cannot_be_had_is_refused_with_the_reason(name, said):
    with pytest.raises(ValueError, match=f"algo.advantage.estimator {name}: .*{said}"):
        load_rule(CreditSpec(name))


def test_scores_of_no_step_are_scores():
    scores = StepScores.of((3, 7), ())
    assert (scores.ends.dtype, scores.scores.dtype, scores.steps) == (torch.int64, torch.float32, 2)
    for given in ((0.5,), (0.5, math.nan), (0.5, math.inf)):
        known = StepScores.of((3, 7), given)
        assert (known.ends.tolist(), known.scores.tolist(), known.steps) == ([3], [0.5], 2)
    assert known.ends.tolist() == [3] and known.scores.tolist() == [0.5]
    group = RolloutGroup(0, (1.0, 0.0), (True, False), (1, 2), prm_scores=(scores, StepScores.of((), ())))
    made = PureRule().credit(group).advantages
    assert made[0].tolist() == [1.0] and made[1].tolist() == [-0.5, -0.5]  # W = 2: a baseline of 1 / 2
    assert PrmReshapeRule().credit(group).weights[0].tolist() == [1.0]
