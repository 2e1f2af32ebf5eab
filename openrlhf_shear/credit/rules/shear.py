"""SHEAR as a rule: a token's weight is the distance of its spans to the rollouts of the other outcome.

Next: `credit.shear`, the formula and its computation.
"""

from collections.abc import Sequence

import torch

from openrlhf_shear.credit.heatmaps import group_evidence
from openrlhf_shear.credit.rule import Credit, CreditRule, GroupCredit, GroupEvidence, RolloutGroup, medians
from openrlhf_shear.credit.rules import WithKnobs
from openrlhf_shear.credit.shear import ShearResult, shear_groups


class ShearRule(WithKnobs, CreditRule):
    """SHEAR's rule, `A~_t = A * omega_t`; omega is the distance of the token's spans to the opposing rollouts."""

    name = "shear"
    needs = frozenset({"hidden_states"})

    def credit(self, group: RolloutGroup) -> Credit:
        return self._credit(*shear_groups([(group.hidden_states, group.correct)], self.config, self.search))

    def credits(self, groups: Sequence[RolloutGroup]) -> list[Credit]:
        """Return the credit of each group; on CUDA their searches share kernels. A subclass's `credit` is respected."""
        if type(self).credit is not ShearRule.credit:
            return super().credits(groups)
        states = [(group.hidden_states, group.correct) for group in groups]
        return [self._credit(result) for result in shear_groups(states, self.config, self.search)]

    def _credit(self, result: ShearResult) -> Credit:
        metrics = {
            "opposed": float(result.opposed),
            "mean_norm": result.mean_norm,
            "nonfinite_rollouts": float(sum(result.nonfinite)),
            "solved_fraction": result.solved_fraction,
            "unconverged_fraction": result.unconverged_fraction,
        }
        return Credit(result.weights, metrics | result.spread_metrics, details=result)

    def evidence(self, group: RolloutGroup, credit: Credit) -> GroupEvidence:
        return group_evidence(group.hidden_states, credit.details, self.config, self.search)

    def summarize(self, groups: Sequence[GroupCredit]) -> dict[str, float]:
        """Return a step's metrics; omega's are over mixed groups, on which alone SHEAR acts, and need such a group."""
        mixed = [group for group in groups if group.metrics["opposed"]]

        def mean(name: str) -> float:
            return sum(group.metrics[name] for group in mixed) / max(len(mixed), 1)

        metrics = {
            "mixed_groups": len(mixed) / max(len(groups), 1),
            "nonfinite_rollouts": sum(group.metrics["nonfinite_rollouts"] for group in groups),
            "unconverged_fraction": mean("unconverged_fraction"),
            "unconverged_groups": float(sum(group.metrics["unconverged_fraction"] > 0 for group in mixed)),
        }
        if not mixed:
            return metrics
        right, wrong = (
            torch.cat([w for g in mixed for w, c in zip(g.weights, g.correct, strict=True) if c == outcome])
            for outcome in (True, False)
        )
        omega = torch.cat([right, wrong])
        return metrics | {
            **medians([group.metrics for group in mixed]),
            "solved_fraction": mean("solved_fraction"),
            "mean_norm": mean("mean_norm"),
            "omega_mean": omega.mean().item(),
            "omega_max": omega.max().item(),
            "omega_min": omega.min().item(),
            "omega_correct": right.mean().item(),
            "omega_incorrect": wrong.mean().item(),
        }
