"""The share of token credit in a gradient, and the check of a run's first rollouts with token credit."""

import pytest
import torch

from openrlhf_shear.credit.token_gradients import CreditLostError, CreditProbe, equal_within_rows, token_share

OMEGA = torch.tensor([[2.0, 0.0, 1.0, 0.5], [0.5, 1.5, 1.0, 1.0]])
BASE = torch.tensor([[1.0], [-0.6]])
MASK = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]])


def by_token(log_probs, advantages):
    return -(log_probs.exp() / log_probs.detach().exp() * advantages * MASK).sum()


def by_rollout(log_probs, advantages):
    """One ratio a rollout, as GSPO's and verl's geo_mean."""
    ratio = ((log_probs - log_probs.detach()) * MASK).sum(1, keepdim=True) / MASK.sum(1, keepdim=True)
    return -(ratio.exp() * advantages * MASK).sum()


def probed(loss, advantages, say=lambda line: None):
    log_probs = torch.randn(advantages.shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    probe = CreditProbe("shear", "another loss", say)
    probe.look(loss(log_probs, advantages), log_probs, advantages, MASK)
    return probe


@pytest.mark.parametrize("scale", [1.0, -1.0, torch.tensor([[1e-4], [30.0]])])
def test_proportional_gradients_carry_all_of_it_whatever_their_scale(scale):
    share, rollouts = token_share(-OMEGA * BASE * scale, OMEGA * BASE, MASK)
    assert share == pytest.approx(1.0, abs=1e-6) and rollouts == 2


def test_equal_gradients_carry_nothing():
    assert token_share(torch.full((2, 4), -0.875), OMEGA * BASE, MASK) == (pytest.approx(0.0, abs=1e-12), 2)


def test_other_factors_of_a_loss_leave_the_share_near_one():
    """Token importance ratios of 0.9 to 1.1 over mild weights, of a deviation of 0.05: a correlation falls to 0.45."""
    draw = torch.Generator().manual_seed(1)
    advantages = 1 + 0.05 * torch.randn(8, 400, generator=draw)
    gradient = -advantages * (1 + 0.1 * torch.randn(8, 400, generator=draw))
    share, _ = token_share(gradient, advantages, torch.ones(8, 400))
    within = [torch.corrcoef(torch.stack([-g, a]))[0, 1].item() for g, a in zip(gradient, advantages, strict=True)]
    assert abs(share - 1) < 0.15 and sum(within) / 8 < 0.55


def test_clipped_tokens_do_not_count_and_tokens_without_credit_do():
    gradient, advantages = -OMEGA * BASE, OMEGA * BASE
    gradient[0, 0] = 0  # clipped, or filtered by an importance correction
    assert token_share(gradient, advantages, MASK)[0] == pytest.approx(1.0, abs=1e-6)
    binary = torch.tensor([[2.0, 0.0, 2.0, 0.0]] * 2)
    assert token_share(-binary, binary, MASK)[0] == pytest.approx(1.0)
    assert token_share(torch.full((2, 4), -1.0), binary, MASK)[0] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("advantages", [BASE.expand(2, 4), torch.zeros(2, 4), BASE * (1 + 1e-7 * OMEGA)])
def test_rollouts_without_token_credit_tell_nothing(advantages):
    assert token_share(-advantages, advantages, MASK) is None


def test_a_probe_waits_for_token_credit_and_looks_once():
    said = []
    probe = probed(by_token, BASE.expand(2, 4), said.append)
    assert not probe.done and not said
    probe = probed(by_token, OMEGA * BASE, said.append)
    assert probe.done and said == ["credit check: 1.000 of the token credit of shear is in the gradient of 2 rollouts"]
    lost = (OMEGA * BASE).requires_grad_()
    probe.look(by_rollout(lost, OMEGA * BASE), lost, OMEGA * BASE, MASK)


def test_a_loss_with_one_ratio_a_rollout_is_refused_with_the_share_and_the_remedy():
    with pytest.raises(CreditLostError, match=r"only 0\.000 of the token credit of shear .* 2 rollouts.*use another"):
        probed(by_rollout, OMEGA * BASE)


def test_equal_within_rows():
    mask = MASK.bool()
    assert equal_within_rows(BASE[:, 0], mask) and equal_within_rows(BASE.expand(2, 4), mask)
    padded = BASE.expand(2, 4).clone()
    padded[1, 0] = 7.0
    assert equal_within_rows(padded, mask) and not equal_within_rows(OMEGA, mask)
