"""The lab's `--rules`: rules, knobs and controls, the identities of their runs, and the oracles."""

import importlib
import sys
from dataclasses import replace

import pytest
import torch
from cases import cases, table

from openrlhf_shear.config import CreditSpec
from openrlhf_shear.credit.registry import load_rule
from openrlhf_shear.lab.credit import ORACLES, KnownGroup, mass_matched, on_incorrect, permuted, shuffled
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.variants import parse_rules

SETTINGS = LabSettings()
SURPRISE = "examples.rules.surprise_rule:SurpriseRule"
RULE = table("lab", "RULE")


def variant_of(text):
    (variant,) = parse_rules(text)
    return variant


def made(text, settings=SETTINGS):
    return variant_of(text).rule(settings)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A function that writes `lab_test_rule:Mine` with these needs, and text around it."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(needs="()", extra="", before=""):
        (tmp_path / "lab_test_rule.py").write_text(before + RULE.format(needs=needs) + extra)
        sys.modules.pop("lab_test_rule", None)
        importlib.invalidate_caches()

    yield write
    sys.modules.pop("lab_test_rule", None)


def test_a_list_is_read_into_rules_knobs_and_controls():
    variants = parse_rules(f" uniform, shear/window=4/stride=1/matched ,{SURPRISE}/shuffled,")
    assert [variant.name for variant in variants] == [
        "uniform", "shear/window=4/stride=1/matched", f"{SURPRISE}/shuffled",
    ]  # fmt: skip
    assert [variant.estimator for variant in variants] == ["uniform", "shear", SURPRISE]
    assert [variant.control for variant in variants] == [None, "matched", "shuffled"]
    assert variants[1].knobs == (("window", "4"), ("stride", "1"))
    assert [variant.control for variant in parse_rules("shear/on_incorrect/matched")] == ["on_incorrect/matched"]


def test_knobs_go_into_the_rule_and_the_settings_fill_the_others():
    shear = made("shear/window=4/distance=chamfer/epsilon=4.5", LabSettings(stride=2, epsilon_rel=0.07)).config
    assert (shear.window, shear.stride, shear.epsilon_rel) == (4, 2, 0.07)
    assert (shear.distance, shear.epsilon) == ("chamfer", 4.5)
    assert made("entropy_adv/kappa=3").config.kappa == 3.0
    assert made(SURPRISE).name == "surprise" and made("uniform").name == "uniform"
    assert {made(name).name for name in ORACLES} == set(ORACLES)


def test_knobs_of_an_outside_rule_are_its_arguments(module):
    module()
    rule = made("lab_test_rule:Mine/power=2.5/label=plain")
    assert (rule.power, rule.label) == (2.5, "plain")


@pytest.mark.parametrize(*cases("lab", "test_what_is_no_list_of_rules_that_can_be_made_is_refused"))
def test_what_is_no_list_of_rules_that_can_be_made_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        made(text)


@pytest.mark.parametrize("needs", ["prm_scores", "crystal_ball"])
def test_a_rule_with_needs_beyond_the_lab_s_is_refused(module, needs):
    module(needs=f"{{'log_probs', '{needs}'}}")
    with pytest.raises(ValueError, match=f"it needs {needs}, which the lab has not got"):
        made("lab_test_rule:Mine")


@pytest.mark.parametrize("name", ["mini_batches", "prompts", "steps", "window"])
def test_a_count_of_zero_is_refused(name):
    with pytest.raises(ValueError, match=f"lab.{name} must"):
        LabSettings(**{name: 0})


def test_the_identity_of_a_rule_follows_its_inputs():
    def identity(text, **changes):
        return variant_of(text).identity(LabSettings(**changes))

    different = [
        identity("shear"), identity("shear", window=8), identity("shear", stride=2), identity("shear", epsilon_rel=0.1),
        identity("shear/matched"), identity("shear/shuffled"), identity("shear/distance=cosine"),
        identity("shear/tail=every"), identity("shear/epsilon_spread=0.1"),
        identity("error_odds"), identity("error_odds/epsilon_spread=0.1"),
        identity("uniform"), identity("oracle_first_wrong"), identity("entropy_adv"), identity("entropy_adv/alpha=0.1"),
    ]  # fmt: skip
    assert all(a != b for i, a in enumerate(different) for b in different[:i])
    assert identity("shear") == identity("shear/window=16") == identity("shear/tail=one")
    assert identity("shear") == identity("shear/backend=torch/max_cost_bytes=2097152")
    assert identity("uniform", window=8) == identity("uniform") == {"estimator": "uniform", "control": None}
    assert identity("shear", window=100, stride=8) == identity("shear/window=100/stride=8")
    assert identity("oracle_first_wrong/hits=1") == identity("oracle_first_wrong")


def test_an_outside_rule_is_known_by_its_code_and_knobs(module):
    module()
    first, knob = variant_of("lab_test_rule:Mine"), variant_of("lab_test_rule:Mine/power=2")
    before = first.identity(SETTINGS)
    assert first.identity(SETTINGS) == before and knob.identity(SETTINGS) != before
    module(extra="\nPOWER = 2\n")
    assert first.identity(SETTINGS) != before
    module(extra="\n\n# a comment\n")
    assert first.identity(SETTINGS) == before
    module(before='"""A docstring."""\n')
    assert first.identity(SETTINGS) == before
    module()
    assert first.identity(SETTINGS) == before


def known_group():
    """Five rollouts of one prompt: an error at token 2, at T and beyond, a right and a lucky one."""
    correct, errors = (False, False, False, True, True), (2, 4, 9, None, 1)
    lengths = (5, 4, 3, 3, 3)
    log_probs = tuple(map(torch.zeros, lengths))
    return KnownGroup(0, tuple(map(float, correct)), correct, lengths, first_errors=errors, log_probs=log_probs)


@pytest.mark.parametrize(
    ("name", "middle"), [("oracle_from_error", [0.0, 0, 1, 1, 1]), ("oracle_first_wrong", [0.0, 0, 1, 0, 0])]
)
def test_an_oracle_blames_the_error_and_leaves_correct_rollouts(name, middle):
    weights = [weight.tolist() for weight in ORACLES[name]().credit(known_group()).weights]
    assert weights == [middle, [0.0, 0, 0, 1], [0.0, 0, 1], [1.0, 1, 1], [1.0, 1, 1]]


def test_some_of_the_errors_are_hit_and_decoys_of_the_rest():
    rule, hit = made("oracle_first_wrong/hits=0.4"), []
    log_probs = torch.tensor([-1.0, -2.0, -3.0, -2.9, 0.0])
    for step in range(1, 51):
        group = KnownGroup(
            step % 8, (0.0,) * 8, (False,) * 8, (5,) * 8, first_errors=(2,) * 8, log_probs=(log_probs,) * 8, step=step
        )
        weights = torch.stack(rule.credit(group).weights)
        assert torch.equal(weights, torch.stack(rule.credit(group).weights)), "again the same"
        assert (weights.sum(1) == 1).all() and (weights[:, 2] + weights[:, 3] == 1).all()
        hit += weights[:, 2].tolist()
    assert sum(hit) / 400 == pytest.approx(0.4, abs=4 * (0.24 / 400) ** 0.5)
    single = KnownGroup(0, (0.0,), (False,), (1,), first_errors=(0,), log_probs=(torch.zeros(1),))
    assert made("oracle_first_wrong/hits=0").credit(single).weights[0].tolist() == [1.0], "there is no other token"
    for bad in ("-0.1", "1.5", "high"):
        with pytest.raises(ValueError, match=f"--rules oracle_first_wrong/hits={bad}"):
            made(f"oracle_first_wrong/hits={bad}")


def test_a_decoy_is_as_surprising_and_not_the_error():
    log_probs = [torch.tensor(row) for row in ([-1.0, -2.0, -3.0, -2.9, 0.0], [-1.0, 0.0, 0.0, -5.0])]
    group = KnownGroup(
        0, (0.0, 0.0, 1.0), (False, False, True), (5, 4, 2), first_errors=(2, 9, None),
        log_probs=(*log_probs, torch.zeros(2)),
    )  # fmt: skip
    weights = ORACLES["oracle_first_wrong"](hits=0).credit(group).weights
    # an error that was never written is the last token; the first token is nearest to it in surprisal
    assert [weight.tolist() for weight in weights] == [[0, 0, 0, 1, 0], [1, 0, 0, 0], [1, 1]]


@pytest.mark.parametrize("name", ["FirstWrongOracle", "FromErrorOracle"])
def test_training_refuses_an_oracle(name):
    with pytest.raises(ValueError, match="it needs first_errors, which is not available"):
        load_rule(CreditSpec(f"openrlhf_shear.lab.credit:{name}"))


def advantages(seed=0, lengths=(30, 20, 25, 40)):
    generator = torch.Generator().manual_seed(seed)
    base = (-1.3, 0.7, 0.0, -0.2)
    return [value * torch.rand(n, generator=generator) for value, n in zip(base, lengths, strict=True)], base


def test_shuffled_credit_is_the_same_credit_elsewhere():
    rows, base = advantages()
    found = shuffled(rows, base, 5)
    for row, other in zip(rows, found, strict=True):
        assert torch.equal(row.sort().values, other.sort().values)
    assert not any(torch.equal(row, other) for row, other in zip(rows, found, strict=True) if row.any())
    assert all(map(torch.equal, found, shuffled(rows, base, 5)))
    assert not torch.equal(torch.cat(found), torch.cat(shuffled(rows, base, 6)))
    alike = torch.arange(30.0)
    first, second = shuffled([alike, alike], (1.0, 1.0), 0)
    assert not torch.equal(first, second)  # each rollout has its own order


def test_on_incorrect_leaves_the_others_alone():
    rows, base = advantages()
    found = on_incorrect(rows, base, 0)
    assert [torch.equal(row, other) for row, other in zip(rows, found, strict=True)] == [True, False, True, True]
    assert found[1].tolist() == pytest.approx([0.7] * 20) and not found[2].any()


def test_permuted_outcomes_are_the_group_s_in_another_order():
    group, orders = replace(known_group(), log_probs=None), set()
    for seed in range(20):
        other = permuted(group, seed)
        assert sorted(other.correct) == sorted(group.correct) and other.rewards == tuple(map(float, other.correct))
        assert replace(other, correct=group.correct, rewards=group.rewards) == group
        orders.add(other.correct)
    assert len(orders) > 4 and permuted(group, 3) == permuted(group, 3)


def test_mass_matched_credit_has_the_same_total_on_both_sides():
    rows, base = advantages()
    found = mass_matched(rows, base, 0)
    for negative in (True, False):
        side = [i for i, value in enumerate(base) if value and (value < 0) == negative]
        total, wanted = (sum(each[i].double().sum().item() for i in side) for each in (found, rows))
        # float32 rows of at most 40 tokens below 1: half an ulp of 1 a token, and of the sums `mass_matched` takes
        assert total == pytest.approx(wanted, abs=1e-5)
        scales = [(found[i].double() / base[i]).unique() for i in side]
        assert torch.cat(scales).std(correction=0) < 1e-6
    assert not found[2].any()
    assert [len(row) for row in found] == [30, 20, 25, 40]


def test_mass_matching_of_the_docstring_and_of_sides_that_are_left_alone():
    found = mass_matched([torch.tensor([0.0, -1.0]), torch.tensor([-0.5, -0.5])], (-1.0, -1.0), 0)
    assert [row.tolist() for row in found] == [[-0.5, -0.5]] * 2
    blamed_less = [torch.full((3,), 2.0), torch.full((2,), -0.1)]
    found = mass_matched(blamed_less, (2.0, -1.0), 0)
    assert torch.equal(found[0], blamed_less[0])
    torch.testing.assert_close(found[1], blamed_less[1], rtol=1e-6, atol=0)
    apart = mass_matched([torch.full((2,), 2.0), torch.full((2,), 1.0)], (2.0, 0.0), 0)
    assert [row.tolist() for row in apart] == [[3.0, 3.0], [0.0, 0.0]]  # the second rollout's credit is not lost
    both_signs = mass_matched([torch.tensor([1.0, -3.0]), torch.tensor([1.0])], (-1.0, 1.0), 0)
    assert [row.tolist() for row in both_signs] == [[-1.5, -1.5], [2.0]]
    nothing = mass_matched([torch.zeros(4), torch.zeros(2)], (0.0, 0.0), 0)
    assert not torch.cat(nothing).any()
