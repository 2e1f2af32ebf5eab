"""The public interface as a user's typed code calls it. mypy reads this file (pyproject.toml); nothing runs it."""

from typing import assert_type

import torch

from openrlhf_shear.config import (
    RULES,
    BuiltIn,
    CreditSpec,
    EntropyAdvConfig,
    PrmConfig,
    PureConfig,
    SearchConfig,
    ShearConfig,
)
from openrlhf_shear.credit import Credit, CreditRule, RolloutGroup, ShearResult, UpdateRule, shear_weights
from openrlhf_shear.rewards import Verdict, grade_code, grade_math
from openrlhf_shear.rewards.code import tests_of
from openrlhf_shear.rollouts.page import make_page
from openrlhf_shear.rollouts.record import Rollout
from openrlhf_shear.transport import Spans, SpanSearch, make_distance, search_spans, span_starts


class MyRule(CreditRule):
    """A user's rule."""

    name = "mine"
    needs = frozenset({"log_probs"})

    def __init__(self, power: float = 1.0) -> None:
        self.power = power

    def credit(self, group: RolloutGroup) -> Credit:
        assert group.log_probs is not None
        return Credit([(-each).clamp(min=0) ** self.power for each in group.log_probs])


def rules(mine: MyRule, group: RolloutGroup, update: UpdateRule) -> None:
    assert_type(RULES, dict[str, BuiltIn])
    assert_type(mine.credit(group), Credit)
    assert_type(update.name, str)


def weights(states: list[torch.Tensor]) -> torch.Tensor:
    result = shear_weights(states, [True, False], ShearConfig(window=100, stride=25), SearchConfig(backend="torch"))
    assert_type(result, ShearResult)
    assert_type(result.weights, list[torch.Tensor])
    return result.weights[0]


def knobs() -> list[object]:
    spec = CreditSpec("shear", ShearConfig(), prm=PrmConfig())
    assert_type(spec.knobs(), dict)
    return [spec, EntropyAdvConfig(alpha=0.4), PureConfig(temperature=0.1)]


def search(correct: Spans, incorrect: Spans) -> SpanSearch:
    assert_type(span_starts(100, ShearConfig()), torch.Tensor)
    return search_spans(correct, incorrect, make_distance("sinkhorn", 0.1, correct, incorrect), 2**30)


def grades(response: str) -> list[bool | None]:
    verdicts = [grade_math(response, ["7"]), grade_code(response, tests_of('{"inputs": [], "outputs": []}'))]
    assert_type(verdicts, list[Verdict])
    return [verdict.correct for verdict in verdicts]


def page(rollouts: list[Rollout]) -> str:
    return make_page(rollouts, {"rule": "shear"}, title="mine")
