"""The credit of tokens in the gradient of TRL's losses: GSPO-token, and the check of a run's first rollouts."""

import pytest
import torch
from known import LOSSES, KnownShear, KnownTrl, batch_of
from trl import GRPOTrainer

from openrlhf_shear.credit.token_gradients import CreditLostError


def looked_at(trainer, batch):
    """The loss of a batch, and its gradient with respect to the log-probs that its forward pass gave, (B, A)."""
    found, look = [], trainer._probe.look
    trainer._probe.look = lambda loss, log_probs, *rest: found.extend((look(loss, log_probs, *rest), log_probs))
    loss = trainer._compute_loss(trainer.model, batch)
    assert trainer._probe.done and trainer._micro_batch is None
    return loss, torch.autograd.grad(loss, found[1])[0]


@pytest.mark.parametrize("loss", ["grpo", "luspo"])
@pytest.mark.parametrize("distance", [0.03, 1.0])  # of the old log-probs: inside the clip range, and outside
def test_a_ratio_a_sequence_keeps_the_gradient_of_each_token(trainer, loss, distance):
    """GSPO-token, beside float64 arithmetic. TRL's own loss has the same value, and at every token the mean."""
    settings = {"loss_type": loss, "importance_sampling_level": "sequence"}
    ours, plain = trainer(**settings), trainer(KnownTrl, **settings)
    batch = batch_of(ours)
    mask = batch["completion_mask"].bool()
    ours.model.eval()
    with torch.no_grad():
        now, _, _ = plain._get_per_token_logps_and_entropies(
            ours.model, *(torch.cat([batch[f"prompt_{k}"], batch[f"completion_{k}"]], 1) for k in ("ids", "mask")),
            mask.shape[1],
        )  # fmt: skip
    ours.model.train()
    batch["old_per_token_logps"] = now + distance * torch.randn(now.shape, generator=torch.Generator().manual_seed(3))
    ours.current_gradient_accumulation_steps = plain.current_gradient_accumulation_steps = 1
    value, gradient = looked_at(ours, batch)
    assert ours.importance_sampling_level == "sequence"
    assert value.item() == pytest.approx(plain._compute_loss(ours.model, batch).item(), abs=1e-5)
    expected = torch.zeros(mask.shape, dtype=torch.float64)
    for row, keep in enumerate(mask):
        ratio = (now - batch["old_per_token_logps"])[row, keep].double().mean().exp()
        credit = batch["advantages"][row].double() * keep
        kept = ratio * credit <= ratio.clamp(0.8, 1.2) * credit
        expected[row] = -ratio * credit * kept / len(mask) / (keep.sum() if loss == "grpo" else 1)
    assert torch.allclose(gradient.double(), expected, rtol=1e-4, atol=1e-7)
    assert (expected != 0).any()


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_carries_the_credit_of_tokens(trainer, loss):
    ours = trainer(loss_type=loss)
    ours.current_gradient_accumulation_steps = 2
    loss, gradient = looked_at(ours, batch_of(ours))
    assert ours._probe.done and loss.isfinite() and gradient.any()


class OneRatio(GRPOTrainer):
    """A trainer whose loss takes the mean of a rollout's advantages, by any name."""

    def _compute_loss(self, model, inputs):
        log_probs, _, _ = self._get_per_token_logps_and_entropies(
            model, *(torch.cat([inputs[f"prompt_{k}"], inputs[f"completion_{k}"]], 1) for k in ("ids", "mask")),
            inputs["completion_ids"].shape[1],
        )  # fmt: skip
        return -(log_probs.sum(1) * inputs["advantages"].mean(1)).mean()


class ShearOnOneRatio(KnownShear, OneRatio):
    pass


def test_a_loss_that_loses_the_credit_of_tokens_ends_training(trainer):
    with pytest.raises(CreditLostError, match=r"0\.000 of the token credit of shear.*importance_sampling_level"):
        trainer(ShearOnOneRatio).train()
