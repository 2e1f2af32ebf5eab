"""Blame incorrect rollouts where they begin to be far from the correct rollouts and not from each other, for good.

    p_t as of `change_rule`, with omega_t - own * omega'_t instead of omega_t

omega is SHEAR's weight for small windows: the distance to the correct rollouts. omega' is the distance to the group's
other incorrect rollouts, 0 if there is no other. Both are in units of the group's mean norm. An unusual but harmless
choice of words is far from both kinds. Correct rollouts keep weight 1. With `surprisal=0` the rule reads only hidden
states, no probabilities.
"""

import torch

from examples.rules.change_rule import ChangeRule
from openrlhf_shear.credit import RolloutGroup, shear_weights


class ContrastRule(ChangeRule):
    """Blames tokens by surprisal and by the change of the contrast at them.

    The knobs are those of `change`, and `own`: the factor of the distance to the incorrect rollouts; 0 makes `change`.
    """

    name = "contrast"

    def __init__(self, own: float = 1.0, **odds):
        super().__init__(**odds)
        self.own = own

    def signal(self, group: RolloutGroup) -> tuple[list[torch.Tensor], dict[str, float]]:
        result = shear_weights(group.hidden_states, group.correct, self.config.shear, self.search)
        metrics = {"opposed": float(result.opposed), "unconverged_fraction": result.unconverged_fraction}
        signal, wrong = [row.cpu() for row in result.weights], [i for i, right in enumerate(group.correct) if not right]
        for i in wrong:
            others = [group.hidden_states[j] for j in wrong if j != i]
            signal[i] = signal[i] - self.own * self._near(group.hidden_states[i], others, result.mean_norm)
        return signal, metrics

    def _near(self, states: torch.Tensor, others: list[torch.Tensor], mean_norm: float) -> torch.Tensor:
        """(T,): the distance to the other incorrect rollouts."""
        if not others or not mean_norm:
            return torch.zeros(len(states))
        outcomes = [False] + [True] * len(others)
        near = shear_weights([states, *others], outcomes, self.config.shear, self.search)
        return near.weights[0].cpu() * (near.mean_norm / mean_norm if near.opposed else 0.0)
