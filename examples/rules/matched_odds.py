"""The matched control of `error_odds` for training: the same blame and praise in each group, spread evenly.

A rule that beats it gains by where it blames, not by how much. The lab has it for every rule (`RULE/matched`).

    --advantage_estimator examples.rules.matched_odds:MatchedOddsRule/surprisal=4/entropy=0/reach=32/epsilon_rel=0.015
"""

from dataclasses import replace

import torch

from openrlhf_shear.config.shear import ErrorOddsConfig
from openrlhf_shear.credit import Credit, RolloutGroup
from openrlhf_shear.credit.rules.error_odds import ErrorOddsRule


class MatchedOddsRule(ErrorOddsRule):
    """Gives every token of a group's incorrect rollouts the mean weight of `error_odds` there; correct ones alike.

    Args:
        odds: knobs of `error_odds`.
    """

    name = "matched_odds"

    def __init__(self, **odds):
        super().__init__(ErrorOddsConfig(**odds))

    def credit(self, group: RolloutGroup) -> Credit:
        credit = super().credit(group)
        means = {}
        for side in {*group.correct}:
            rows = [row for row, correct in zip(credit.weights, group.correct, strict=True) if correct is side]
            means[side] = torch.cat(rows).mean().item() if sum(map(len, rows)) else 1.0
        rows = zip(credit.weights, group.correct, strict=True)
        return replace(credit, weights=[torch.full_like(row, means[correct]) for row, correct in rows])
