"""Entropies of a forward pass, captured on the way."""

from __future__ import annotations

import types

import pytest
import torch

from openrlhf_shear.credit.entropies import captured_entropies


class Actor(torch.nn.Module):
    """Stands for OpenRLHF's: log-probs of the masked columns, and if asked its output, in it entropies if asked."""

    def forward(self, sequences, action_mask=None, return_output=False, return_entropy=False):
        log_probs, output = -sequences[:, -action_mask.shape[1] :] * action_mask, types.SimpleNamespace()
        if return_entropy:
            assert return_output
            output.entropy = 2 * sequences[:, :-1]
        return (log_probs, output) if return_output else log_probs


def test_entropies_are_captured_while_callers_get_log_probs():
    actor, mask = Actor(), torch.tensor([[1, 0], [1, 1]])
    first, second = (torch.rand(2, 4).requires_grad_() for _ in range(2))
    plain = actor(first, action_mask=mask)
    with captured_entropies(actor) as captured:
        found = [actor(first, action_mask=mask), actor(second, mask)]
    assert torch.equal(found[0], plain) and torch.equal(found[1], -second[:, -2:] * mask)
    assert [entropies.tolist() for entropies in captured] == [(2 * each[:, :-1]).tolist() for each in (first, second)]
    assert not any(entropies.requires_grad for entropies in captured)


def test_entropies_are_no_longer_asked_for_afterwards_whatever_happened():
    actor, mask = Actor(), torch.ones(1, 2)
    with pytest.raises(KeyError), captured_entropies(actor) as captured:
        raise KeyError
    assert torch.is_tensor(actor(torch.rand(1, 4), action_mask=mask)) and captured == []
    log_probs, output = actor(torch.rand(1, 4), action_mask=mask, return_output=True)
    assert torch.is_tensor(log_probs) and not hasattr(output, "entropy")
