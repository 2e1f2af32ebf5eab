"""Metrics of an update: means over all its rollouts, however they were cut into micro-batches.

OpenRLHF divides the loss of a micro-batch by the tokens of the whole optimizer step, and then weighs it by the
micro-batch's tokens again. With uneven responses the reported number is not the optimised loss. Here every metric is a
sum over micro-batches and ranks, divided once, at the end:

- a loss (`policy_loss`, `entropy_loss`, `critic_loss`, `kl` with --algo.kl.use_loss) is a sum over its units, tokens
  or sequences, divided by their number. Over one optimizer step this is the optimised value. Over several it is their
  mean, weighted by units.
- a mean over tokens (`ppo_kl`, `ppo_clip_ratio`, ...) is weighted by tokens, a mean over rollouts by rollouts. Fillers
  have no tokens and do not count as rollouts.
"""

from collections import defaultdict

import torch


class Meter:
    """Accumulator of an update's metrics on this rank; `means` joins the ranks."""

    def __init__(self):
        self._sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, name: str, value: float, weight: float) -> None:
        """Add a mean `value` with its `weight`; a value of weight 0 is ignored."""
        if weight:
            total = self._sums[name]
            total[0] += float(value) * weight
            total[1] += weight

    def add_loss(self, name: str, loss: float, mask: torch.Tensor, norm: dict, by_token: bool = True) -> None:
        """Add a micro-batch's loss from OpenRLHF's `aggregate_loss`.

        Args:
            mask: (B, A), its action tokens.
            norm: `aggregate_loss`' `dp_size`, `batch_num_tokens` and `global_batch_size`.
            by_token: whether the loss is a mean over tokens; otherwise it is a mean over sequences of token means.
        """
        units = mask.sum() if by_token else mask.any(-1).sum()
        whole = norm["batch_num_tokens"] if by_token else norm["global_batch_size"]
        if units := float(units):
            self.add(name, float(loss) * float(whole) / norm["dp_size"] / units, units)

    def means(self) -> dict[str, float]:
        """Return every metric over all ranks; every rank calls this."""
        ranks = [self._sums]
        if torch.distributed.is_initialized():
            ranks *= torch.distributed.get_world_size()
            torch.distributed.all_gather_object(ranks, dict(self._sums))
        totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for name, (value, weight) in (item for sums in ranks for item in sums.items()):
            totals[name][0] += value
            totals[name][1] += weight
        return {name: value / weight for name, (value, weight) in sorted(totals.items())}
