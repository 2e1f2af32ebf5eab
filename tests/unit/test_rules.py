"""The interface of credit rules: what a rule is given, what is refused, and rules from outside the package."""

import importlib.util
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.strategies import floats

from openrlhf_shear.config import RULES, CreditSpec, EntropyAdvConfig, ShearConfig
from openrlhf_shear.config.names import is_rule
from openrlhf_shear.config.spec import OutcomeConfig
from openrlhf_shear.credit import Credit, CreditRule, UpdateRule, shear_weights
from openrlhf_shear.credit.checks import CreditRuleError
from openrlhf_shear.credit.groups import CreditRequest, GroupCollector, step_metrics
from openrlhf_shear.credit.in_update import shaped_advantages
from openrlhf_shear.credit.registry import load_rule
from openrlhf_shear.credit.rule import RolloutGroup, StepScores
from openrlhf_shear.credit.rules.entropy_adv import EntropyAdvRule
from openrlhf_shear.credit.rules.prm_reshape import PrmReshapeRule
from openrlhf_shear.credit.rules.pure import PureRule
from openrlhf_shear.credit.rules.shear import ShearRule

ROOT = Path(__file__).parents[2]
LENGTHS = (5, 3)


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


def test_shear_is_a_rule_like_any_other():
    config = ShearConfig(window=2, stride=1)
    credit = through(ShearRule(config), hidden_states=states())
    expected = shear_weights(states(), [True, False], config)
    assert all(torch.equal(a, b) for a, b in zip(credit.weights, expected.weights, strict=True))
    assert isinstance(load_rule(CreditSpec("shear", config)), ShearRule)
    assert load_rule(CreditSpec("shear", config)).config == config


def test_uniform_is_one_everywhere_and_needs_nothing():
    rule = load_rule(CreditSpec("uniform"))
    credit = through(rule)
    assert [weight.tolist() for weight in credit.weights] == [[1.0] * 5, [1.0] * 3]
    metrics = step_metrics(rule, [credit], seconds=0.5)
    assert metrics == {
        **{"uniform/weight_mean": 1.0, "uniform/weight_min": 1.0, "uniform/weight_max": 1.0},
        "uniform/credit_seconds": 0.5,
    }


class Given(CreditRule):
    """Records its group, gives what it was told to."""

    name = "given"
    needs = frozenset({"hidden_states", "log_probs"})

    def __init__(self, answer=None):
        self.answer = answer

    def credit(self, group):
        self.group = group
        if isinstance(self.answer, Exception):
            raise self.answer
        return Credit([torch.ones(n) for n in group.lengths]) if self.answer is None else self.answer


def test_what_a_rule_is_given():
    rule, log_probs = Given(), [-torch.rand(length) for length in LENGTHS]
    through(rule, hidden_states=states(), log_probs=log_probs)
    group = rule.group
    assert (group.number, group.rewards, group.correct, group.lengths) == (1, (1.0, 0.0), (True, False), LENGTHS)
    assert all(torch.equal(a, b) for a, b in zip(group.log_probs, log_probs, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(group.hidden_states, states(), strict=True))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (KeyError("oops"), "it raised KeyError: 'oops'"),
        ([torch.ones(5), torch.ones(3)], "must return a Credit: got list"),
        (Credit([torch.ones(5)]), "2 rollouts need as many weights: got 1"),
        (Credit([torch.ones(5), torch.ones(4)]), r"rollout 1 must be a tensor \(3,\): got \(4,\)"),
        (Credit([torch.ones(5, 1), torch.ones(3)]), r"rollout 0 must be a tensor \(5,\): got \(5, 1\)"),
        (Credit([[1.0] * 5, torch.ones(3)]), r"rollout 0 must be a tensor \(5,\): got list"),
        (Credit([torch.tensor([1.0, float("nan"), 1, 1, float("inf")]), torch.ones(3)]), "2 of 5 weights of rollout 0"),
    ],
)
def test_what_is_no_credit_is_an_error_that_names_the_rule_and_the_group(answer, said):
    with pytest.raises(CreditRuleError, match=rf"credit rule given \(.*:Given\), group 1: .*{said}"):
        through(Given(answer), hidden_states=states(), log_probs=states())


def test_metrics_of_a_rule_are_means_over_groups():
    rule = Given(Credit([torch.tensor([0.0, 1, 1, 1, 2]), torch.ones(3)], {"spread": 3.0}))
    credit = through(rule, hidden_states=states(), log_probs=states())
    rule.answer = Credit([torch.ones(5), torch.ones(3)], {"spread": 1.0, "extra": 7.0})
    other = through(rule, hidden_states=states(), log_probs=states())
    metrics = step_metrics(rule, [credit, other], seconds=0.0)
    assert metrics["given/spread"] == 2.0 and metrics["given/extra"] == 7.0
    assert (metrics["given/weight_min"], metrics["given/weight_max"]) == (0.0, 2.0)


# --- in the update ---


@given(a=floats(-3, 3), h=floats(0, 12), alpha=floats(0, 2), kappa=floats(1.01, 8))
def test_entropy_adv_adds_a_capped_bonus(a, h, alpha, kappa):
    rule = EntropyAdvRule(EntropyAdvConfig(alpha=alpha, kappa=kappa))
    shaped, _ = rule.advantages(torch.tensor([[a]]), torch.tensor([[h]]), torch.tensor([[True]]))
    a32, h32 = np.float32(a), np.float32(h)
    expected = a32 + min(np.float64(alpha) * h32, abs(np.float64(a32)) / kappa)
    # three float32 roundings of numbers up to 24
    assert shaped.item() == pytest.approx(expected, abs=4 * 24 * 2**-24)
    assert a32 - 1e-6 <= shaped.item() <= a32 + abs(a32) / kappa + 1e-6
    assert np.sign(shaped.item()) == np.sign(a32), "signs stay; nothing becomes something"


def test_entropy_adv_at_its_defaults_and_its_metrics():
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0, 0.0, 5.0]])
    entropies = torch.tensor([[0.5, 9.0, 0.5, 9.0, 9.0, 1.0]])
    mask = torch.tensor([[True, True, True, True, True, False]])
    shaped, metrics = EntropyAdvRule().advantages(advantages, entropies, mask)
    assert shaped[0, :5].tolist() == pytest.approx([1.2, 1.5, -0.8, -0.5, 0.0])
    assert metrics == pytest.approx({"entropy": 28 / 5, "bonus": (0.2 + 0.5) * 2 / 4, "capped": 0.5})


@pytest.mark.parametrize("knob", [{"alpha": -1.0}, {"alpha": float("nan")}, {"kappa": 1.0}, {"kappa": float("inf")}])
def test_entropy_adv_knobs_out_of_range(knob):
    with pytest.raises(ValueError, match=f"entropy_adv.{next(iter(knob))} must be"):
        EntropyAdvConfig(**knob)


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


def step(rule, inside=True):
    entropies = torch.arange(8.0).reshape(2, 4).requires_grad_()
    actor, loss, zeros = Actor(), Loss(), torch.zeros(2, 3)
    with shaped_advantages(rule, actor, loss) as metrics:
        if inside:
            log_probs, _ = actor(entropies)
            return loss(log_probs, zeros, zeros, action_mask=torch.tensor([[1, 1, 0], [1, 0, 0]])), metrics
    log_probs, _ = actor(entropies)
    return loss(log_probs, zeros, zeros, action_mask=torch.ones(2, 3)), metrics


def test_a_rule_in_the_update_replaces_what_the_loss_is_called_with():
    shaped, metrics = step(Shift())
    assert shaped.tolist() == [[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]] and metrics == [{"seen": 3.0}]
    untouched, metrics = step(Shift(), inside=False)
    assert not untouched.any() and metrics == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (torch.zeros(2, 2), r"must be a tensor \(2, 3\): got \(2, 2\)"),
        (1.0, r"must be a tensor \(2, 3\): got float"),
        (torch.full((2, 3), float("nan")), "3 advantages are NaN or infinite"),
    ],
)
def test_what_is_no_advantage_is_an_error_before_the_loss(answer, said):
    with pytest.raises(CreditRuleError, match=rf"credit rule shift \(.*:Shift\), in the update: .*{said}"):
        step(Shift(answer))


# --- the open door ---


def test_the_example_rule():
    spec = importlib.util.spec_from_file_location("surprise_rule", ROOT / "examples" / "rules" / "surprise_rule.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    log_probs = [torch.tensor([-0.0, -1.0, -9.0, -0.5, -2.0]), torch.tensor([-1.0, -1.0, -1.0])]
    credit = through(module.SurpriseRule(), log_probs=log_probs)
    surprise = [0.0, 0.2, 1.0, 0.1, 0.4]
    expected = [1 + s - sum(surprise) / 5 for s in surprise]
    assert credit.weights[0].tolist() == pytest.approx(expected) and credit.weights[1].tolist() == [1.0] * 3
    assert credit.metrics["surprise"] == pytest.approx((sum(surprise) / 5 + 0.2) / 2)
    assert len(Path(module.__file__).read_text().splitlines()) < 40


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        *((name, True) for name in RULES),
        *(
            ("a.b:C", True),
            ("a:C/power=2", True),
            ("shear/window=4", True),
            ("error_odds", True),
            ("group_norm", False),
            ("a.b.C", False),
            ("a.b:", False),
            (":C", False),
        ),
        *(("http://a:80", False), ("a b:C", False)),
    ],
)
def test_names_of_rules(name, rule):
    assert is_rule(name) is rule


@pytest.fixture
def outside(tmp_path, monkeypatch):
    (tmp_path / "my_rules.py").write_text(
        "from openrlhf_shear.credit import Credit, CreditRule, UpdateRule\n"
        "class Good(CreditRule):\n    name = 'good'\n    def credit(self, group): return Credit([])\n"
        "class Later(UpdateRule):\n    def advantages(self, advantages, entropies, mask): return advantages, {}\n"
        "class Needy(Good):\n    needs = frozenset({'the moon'})\n"
        "class Abstract(CreditRule): pass\n"
        "class Arguments(Good):\n    def __init__(self, scale): pass\n"
        "def function(group): pass\n"
    )
    (tmp_path / "broken_rules.py").write_text("import nothing_of_this_name")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_rule_from_outside(outside):
    assert load_rule(CreditSpec("my_rules:Good")).name == "good"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_rules:Good", "no_rules cannot be imported .*ModuleNotFoundError.*working dir"),
        ("broken_rules:Good", "broken_rules cannot be imported .*nothing_of_this_name"),
        ("my_rules:Better", "has nothing of that name"),
        ("my_rules:function", "has a function that is no CreditRule"),
        ("my_rules:Abstract", r"Abstract\(\) raised TypeError"),
        ("my_rules:Arguments", r"Arguments\(\) raised TypeError"),
        ("my_rules:Needy", "it needs the moon, which nobody gives"),
    ],
)
def test_a_rule_that_cannot_be_had_is_refused_with_the_reason(outside, name, said):
    with pytest.raises(ValueError, match=f"algo.advantage.estimator {name}: .*{said}"):
        load_rule(CreditSpec(name))


def test_the_command_line_takes_rules(job, outside, capsys):
    from openrlhf_shear.cli.train_ppo_ray import parse

    for name in ("uniform", "my_rules:Good"):
        args = vars(parse(job(f"--algo.advantage.estimator {name} --shear.correct_threshold 0.7")))
        assert args["credit"] == CreditSpec(name, outcome=OutcomeConfig(0.7))
        assert args["algo.advantage.estimator"] == "group_norm"
        assert "no effect" not in capsys.readouterr().err
    parse(job("--algo.advantage.estimator uniform --shear.window 70"))
    assert "--shear.window has no effect with --algo.advantage.estimator uniform" in capsys.readouterr().err
    for line, said in (
        ("--algo.advantage.estimator my_rules:Better", "has nothing of that name"),
        ("--algo.advantage.estimator unifrom", "invalid choice"),
        ("--algo.advantage.estimator uniform --rollout.n_samples_per_prompt 1", "greater than 1 for estimator uniform"),
        ("--algo.advantage.estimator uniform --ds.ring_attn_size 2", "which estimator uniform does not support"),
    ):
        with pytest.raises(SystemExit):
            parse(job(line))
        assert said in capsys.readouterr().err


def test_a_rule_that_acts_in_the_update_has_entropies(job, outside):
    from openrlhf_shear.cli.train_ppo_ray import parse

    for name, coef in (("my_rules:Later", 0.0), ("my_rules:Good", None), ("entropy_adv", 0.0)):
        assert vars(parse(job(f"--algo.advantage.estimator {name}")))["actor.entropy_coef"] == coef
    assert vars(parse(job("--algo.advantage.estimator my_rules:Later --actor.entropy_coef 0.1")))[
        "actor.entropy_coef"
    ] == pytest.approx(0.1)


def test_scores_of_no_step_are_scores():
    scores = StepScores.of((3, 7), ())
    assert (scores.ends.dtype, scores.scores.dtype, scores.steps) == (torch.int64, torch.float32, 2)
    known = StepScores.of((3, 7), (0.5,))
    assert known.ends.tolist() == [3] and known.scores.tolist() == [0.5]
    group = RolloutGroup(0, (1.0, 0.0), (True, False), (1, 2), prm_scores=(scores, StepScores.of((), ())))
    made = PureRule().credit(group).advantages
    assert made[0].tolist() == [1.0] and made[1].tolist() == [-0.5, -0.5]  # W = 2: a baseline of 1 / 2
    assert PrmReshapeRule().credit(group).weights[0].tolist() == [1.0]


def test_names_of_the_package_s_rules_are_known_without_torch(job):
    line = job("--algo.advantage.estimator uniform")
    code = f"import sys\nfrom openrlhf_shear.cli.train_ppo_ray import parse\nparse({line!r})\n"
    code += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
