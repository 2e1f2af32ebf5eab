"""Blame incorrect rollouts where their hidden states begin to look wrong, for good.

The direction of a move counts, not its size:

    p_t as of `change_rule`, with x_t instead of omega_t
    x_t = w (h_t - m), in units of its standard deviation over the rollouts that w is fitted on
    w = (C + ridge trace(C) / d I)^-1 (mean state of the incorrect rollouts - mean state of the correct rollouts)

w is Fisher's linear discriminant (1936) of the states of the group's *other* rollouts, so the rollout itself has no
influence on it. C is the pooled covariance of these states, and m the mean of the two means. x_t is 0 if the other
rollouts are all correct or all incorrect. Correct rollouts keep weight 1.
"""

import torch

from examples.rules.change_rule import ChangeRule
from openrlhf_shear.credit import RolloutGroup


class DiscriminantRule(ChangeRule):
    """Blames tokens by surprisal and by the change of the discriminant at them.

    `surprisal`, `entropy` and `rise` are those of `change`; `ridge` is in the formula above.
    """

    name = "discriminant"

    def __init__(self, surprisal: float = 4.0, entropy: float = 0.0, rise: float = 0.5, ridge: float = 0.1):
        super().__init__(surprisal=surprisal, entropy=entropy, rise=rise)
        self.ridge = ridge

    def signal(self, group: RolloutGroup) -> tuple[list[torch.Tensor], dict[str, float]]:
        signal, fitted = [torch.zeros(length) for length in group.lengths], 0
        sides = {
            outcome: [i for i, right in enumerate(group.correct) if right is outcome and group.lengths[i]]
            for outcome in (True, False)
        }
        for i in sides[False]:
            right, wrong = ([group.hidden_states[j].double() for j in side if j != i] for side in sides.values())
            if right and wrong:
                signal[i] = self._projected(group.hidden_states[i].double(), torch.cat(right), torch.cat(wrong))
                fitted += 1
        return signal, {"fitted": fitted / max(len(sides[False]), 1)}

    def _projected(self, states: torch.Tensor, right: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor:
        """Return x, (T,) float32 on the CPU, from float64 states (T, d)."""
        means = [side.mean(0) for side in (right, wrong)]
        within = torch.cat([side - mean for side, mean in zip((right, wrong), means, strict=True)])
        covariance = within.T @ within / len(within)
        damped = covariance + self.ridge * covariance.diagonal().mean() * torch.eye(len(covariance)).to(covariance)
        direction = torch.linalg.solve(damped, means[1] - means[0])
        scale = (direction @ covariance @ direction).sqrt()
        x = (states - (means[0] + means[1]) / 2) @ direction
        return (x / scale if scale > 0 else torch.zeros_like(x)).float().cpu()
