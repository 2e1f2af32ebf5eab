"""Credit by the known first error, which only a task with known errors can give: a reference for rules that guess it.

It is no upper bound: nobody proved that this is the best credit. Both leave correct rollouts alone, also lucky ones. An
error that was never written, since the response ran into the token limit, counts as its last token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup


@dataclass(frozen=True)
class KnownGroup(RolloutGroup):
    """A group whose errors are known.

    Attributes:
        first_errors: by rollout, the index of the first wrong token; None where there is none.
    """

    first_errors: tuple[int | None, ...] = ()


class FromErrorOracle(CreditRule):
    """Incorrect rollouts: 1 from the first wrong token on, 0 before it."""

    name = "oracle_from_error"
    needs = frozenset({"first_errors"})  # training, where nobody gives them, refuses it
    blamed = staticmethod(torch.ge)

    def credit(self, group: KnownGroup) -> Credit:
        weights = [torch.ones(length) for length in group.lengths]
        for weight, correct, error in zip(weights, group.correct, group.first_errors, strict=True):
            if not correct and len(weight):
                weight[:] = self.blamed(torch.arange(len(weight)), min(error, len(weight) - 1))
        return Credit(weights)


class FirstWrongOracle(FromErrorOracle):
    """Incorrect rollouts: 1 on the first wrong token, 0 elsewhere."""

    name = "oracle_first_wrong"
    blamed = staticmethod(torch.eq)


ORACLES = {oracle.name: oracle for oracle in (FromErrorOracle, FirstWrongOracle)}
