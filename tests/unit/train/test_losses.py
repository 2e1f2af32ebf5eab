"""Policy losses of a run with a credit rule: GSPO-token beside its formula, and losses that lose token credit."""

import openrlhf_on_cpu  # noqa: F401
import pytest
import torch
from openrlhf.models import PolicyLoss

from openrlhf_shear.train.screen.outcome import RefusedError
from openrlhf_shear.train.update.losses import credited_loss

LENGTHS = (5, 3, 6)
MASK = torch.tensor([[float(t < length) for t in range(6)] for length in LENGTHS])
SETTINGS = {"clip_eps_low": 0.2, "clip_eps_high": 0.3, "policy_loss_type": "gspo"}


def inputs(seed=0, spread=0.1):
    draw = torch.Generator().manual_seed(seed)
    now, old, sampled = (torch.randn(3, 6, generator=draw) * spread - 1 for _ in range(3))
    omega = torch.rand(3, 6, generator=draw) * 2
    return now.requires_grad_(), old, omega * torch.tensor([[1.0], [-0.7], [0.4]]), sampled


def gradient_of(loss, now, *others, **more):
    results = loss(now, *others, action_mask=MASK, **more)
    (gradient,) = torch.autograd.grad(results[0], now)
    return results, gradient


@pytest.mark.parametrize("level", ["off", "token"])
@pytest.mark.parametrize("spread", [0.1, 1.0])  # rollouts inside the clip range, and outside
def test_the_gradient_of_gspo_token_is_advantage_times_ratio_at_each_token(level, spread):
    """Beside float64 arithmetic: -s A_t / |y| / 3, and 0 where the smaller term is the clipped one."""
    now, old, advantages, sampled = inputs(spread=spread)
    loss = credited_loss(PolicyLoss(**SETTINGS, is_correction_level=level), "shear")
    results, gradient = gradient_of(loss, now, old, advantages, rollout_log_probs=sampled)
    expected, value, clipped = torch.zeros(3, 6, dtype=torch.float64), 0.0, 0
    for i, length in enumerate(LENGTHS):
        before = (old if level == "off" else sampled)[i, :length].double()
        ratio = (now[i, :length].detach().double() - before).mean().exp().item()
        held = min(max(ratio, 0.8), 1.3)
        for t in range(length):
            credit = advantages[i, t].item()
            clipped += held * credit < ratio * credit
            value -= min(ratio * credit, held * credit) / length / 3
            if ratio * credit <= held * credit:
                expected[i, t] = -ratio * credit / length / 3
    assert torch.allclose(gradient.double(), expected, atol=1e-7)  # float32's rounding of values near 0.1
    assert results[0].item() == pytest.approx(value, abs=1e-6)
    assert results[1].item() == pytest.approx(clipped / sum(LENGTHS))
    assert spread == 0.1 or clipped


def test_its_value_and_metrics_are_gspos_to_the_bit():
    now, old, advantages, _ = inputs()
    sizes = {"dp_size": 2, "global_batch_size": 5.0}
    mine = credited_loss(PolicyLoss(**SETTINGS), "shear")(now, old, advantages, action_mask=MASK, **sizes)
    plain = PolicyLoss(**SETTINGS)(now, old, advantages, action_mask=MASK, **sizes)
    assert all(torch.equal(a, b) for a, b in zip(mine[:3], plain[:3], strict=True)) and mine[3:] == plain[3:]


def test_with_equal_advantages_gradients_are_gspos_to_the_bit():
    now, old, _, _ = inputs()
    advantages = torch.tensor([[1.0], [-0.7], [0.4]]).expand(3, 6)
    pairs = [gradient_of(loss, now, old, advantages) for loss in (PolicyLoss(**SETTINGS), _uniform())]
    assert torch.equal(pairs[0][1], pairs[1][1])
    # The same by the formula with a gradient per token, up to the order of sums.
    nearly = advantages.clone()
    nearly[0, 0] += 1e-6
    assert torch.allclose(gradient_of(_uniform(), now, old, nearly)[1], pairs[0][1], atol=1e-6)


def _uniform():
    return credited_loss(PolicyLoss(**SETTINGS), "uniform")


def test_a_loss_that_loses_token_credit_ends_the_run_whatever_its_name():
    class NewLoss(PolicyLoss):
        """A loss of a later OpenRLHF, with one ratio a rollout."""

        def forward(self, log_probs, old, advantages, action_mask=None, **_):
            ratio = ((log_probs - old) * action_mask).sum(1, keepdim=True).exp()
            return -(ratio * advantages * action_mask).mean(), *[torch.zeros(())] * 2, None, None

    now, old, advantages, _ = inputs()
    loss = NewLoss()
    loss.policy_loss_type = "new"
    with pytest.raises(RefusedError, match=r"--actor\.policy_loss_type new: only 0\.000 of the token credit of shear"):
        credited_loss(loss, "shear")(now, old, advantages, action_mask=MASK)


def test_ppo_carries_it_and_is_looked_at_once(monkeypatch):
    now, old, advantages, _ = inputs()
    loss = credited_loss(PolicyLoss(), "shear")
    assert len(loss._forward_hooks) == 1
    loss(now.detach(), old, advantages, action_mask=MASK)  # nothing to look at without a graph
    assert len(loss._forward_hooks) == 1
    loss(now, old, advantages, action_mask=MASK)
    assert not loss._forward_hooks
