"""A rollout with numbers that are not finite, in every built-in rule: it changes no credit of the others."""

import math
from dataclasses import replace

import pytest
import torch

from openrlhf_shear.config.names import parse_rule
from openrlhf_shear.config.spec import SearchConfig, credit_spec
from openrlhf_shear.credit.apply import weighed
from openrlhf_shear.credit.checks import without_nonfinite
from openrlhf_shear.credit.logits import LMHead
from openrlhf_shear.credit.registry import make_rule
from openrlhf_shear.credit.rule import RolloutGroup

T, D, V = 12, 8, 10
FLOATS = ("hidden_states", "source_states", "log_probs", "entropies", "ref_log_probs", "hint_log_probs")
RULES = ("shear/window=4/stride=2", "delta", "otb", "nthr", "spro", "gtpo", "entropy_mask", "ktae", "rlsd", "sdpo")


def group(broken: int | None = None, value: float = math.nan) -> RolloutGroup:
    drawn = torch.Generator().manual_seed(0)

    def rows(*shape: int) -> tuple[torch.Tensor, ...]:
        made = [torch.rand(T, *shape, generator=drawn) for _ in range(4)]
        if broken is not None:
            made[broken][T // 2 :] = value
        return tuple(made)

    states = {name: rows(D) for name in FLOATS[:2]} | {name: rows() for name in FLOATS[2:]}
    ids = tuple(torch.randint(V, (T,), generator=drawn) for _ in range(4))
    head = LMHead(torch.rand(V, D, generator=drawn))
    correct = (True, False, True, False)
    return RolloutGroup(0, tuple(map(float, correct)), correct, (T,) * 4, token_ids=ids, lm_head=head, **states)


def credit(name: str, of: RolloutGroup) -> list[torch.Tensor]:
    spec = credit_spec(parse_rule(name), {}, SearchConfig())
    ((made, _),) = weighed(make_rule(spec.name, spec.config, "test"), [of], [range(4)])
    return [torch.stack(list(rows)) for rows in made.tensors().values()]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", RULES)
def test_the_others_have_the_credit_that_they_have_beside_a_rollout_without_a_reward(name, value):
    whole = group()
    failed = replace(whole, rewards=(1.0, 0.0, 1.0, math.nan), correct=(True, False, True, None))
    for found, expected in zip(credit(name, group(3, value)), credit(name, failed), strict=True):
        assert torch.equal(found[:3], expected[:3]) and found.isfinite().all()


def test_a_group_of_finite_numbers_is_unchanged():
    whole = group()
    assert without_nonfinite(whole) is whole
    found = without_nonfinite(group(1))
    assert found.correct == (True, None, True, False) and math.isnan(found.rewards[1])
    assert found.hidden_states[1].isnan().any() and not found.log_probs[1].any()


SPECS = {name: credit_spec(parse_rule(name), {}, SearchConfig()) for name in RULES}
OF = {name: make_rule(spec.name, spec.config, "test") for name, spec in SPECS.items()}
CASES = [(name, need) for name, rule in OF.items() for need in FLOATS if need in rule.needs]


@pytest.mark.parametrize(("name", "need"), CASES)
def test_a_nan_in_any_one_of_the_needs_of_a_rule_is_seen(name, need):
    rule, whole, broken = OF[name], group(), group(3)
    others = {field: None for field in FLOATS if field not in rule.needs}  # a run gives a rule its needs alone
    failed = replace(whole, rewards=(1.0, 0.0, 1.0, math.nan), correct=(True, False, True, None), **others)
    given = replace(whole, **others | {need: getattr(broken, need)})
    found, expected = (weighed(rule, [each], [range(4)])[0][0].tensors() for each in (given, failed))
    for mine, its in zip(found.values(), expected.values(), strict=True):
        assert all(map(torch.equal, mine[:3], its[:3])) and all(row.isfinite().all() for row in mine)
