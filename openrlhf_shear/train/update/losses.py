"""Policy losses of a run with a credit rule: GSPO with a gradient per token, and the check that credit arrives."""

import torch
from openrlhf.models import PolicyLoss
from openrlhf.models.utils import masked_mean
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.credit.token_gradients import CreditLostError, CreditProbe, equal_within_rows
from openrlhf_shear.train.screen.outcome import RefusedError

logger = init_logger(__name__)


class GspoTokenLoss(PolicyLoss):
    """GSPO-token: the ratio of a whole rollout, and a gradient for each token (Zheng et al. 2025, section 4.3).

    With s = exp(mean_t log(pi_t / old_t)) of a rollout, s_t = sg[s] pi_t / sg[pi_t], where sg stops gradients. The loss
    of a rollout is the mean of -min(s_t A_t, clip(s_t) A_t). Its value is GSPO's. The gradient of token t is that of
    s A_t, where GSPO's is that of s mean(A) at every token. If all rollouts have equal advantages at all their tokens
    the two are the same, and OpenRLHF's GSPO computes them.
    """

    def __init__(self, loss: PolicyLoss):
        """Take over the settings of OpenRLHF's loss of type "gspo"."""
        clip = {"clip_eps_low": loss.clip_eps_low, "clip_eps_high": loss.clip_eps_high, "dual_clip": loss.dual_clip}
        super().__init__(**clip, policy_loss_type="gspo")
        # OpenRLHF's GSPO reads only the level, which says where old log-probs come from.
        self.is_correction_level = loss.is_correction_level
        self._by_token = PolicyLoss(**clip, token_level_loss=False)

    def forward(self, log_probs, old_log_probs, advantages, action_mask=None, rollout_log_probs=None, **sizes):
        """Return OpenRLHF's five results: the loss, the clipped share, the KL of the update, None and None.

        Args:
            log_probs, old_log_probs, advantages, action_mask, rollout_log_probs: (B, A).
            sizes: of the batch, over which OpenRLHF takes the mean.
        """
        if equal_within_rows(advantages, action_mask.bool()):
            return super().forward(log_probs, old_log_probs, advantages, action_mask, rollout_log_probs, **sizes)
        before = old_log_probs if self.is_correction_level == "off" else rollout_log_probs
        now = log_probs.detach()
        # The next line is OpenRLHF's, so that s is GSPO's to the bit.
        log_ratio = ((now - before) * action_mask).sum(dim=-1) / action_mask.sum(dim=-1).clamp(min=1)
        tokens = log_ratio[:, None] + (log_probs - now)
        loss, clipped, *_ = self._by_token(tokens, torch.zeros_like(tokens), advantages, action_mask, **sizes)
        return loss, clipped, masked_mean(old_log_probs - now, action_mask, dim=None), None, None


def credited_loss(loss: PolicyLoss, rule: str) -> PolicyLoss:
    """Return the loss for a run with a credit rule; it ends the run if it does not carry the credit of tokens.

    Its first calls raise RefusedError (exit code 2) in this case.
    """
    kind = loss.policy_loss_type
    probe = CreditProbe(rule, "--actor.policy_loss_type ppo, or gspo", logger.info)
    loss = GspoTokenLoss(loss) if kind == "gspo" else loss

    def check(module: PolicyLoss, inputs: tuple, named: dict, results: tuple) -> None:
        try:
            probe.look(results[0], inputs[0], inputs[2], named["action_mask"])
        except CreditLostError as error:
            raise RefusedError(f"--actor.policy_loss_type {kind}: {error}") from None
        if probe.done:
            hook.remove()

    hook = loss.register_forward_hook(check, with_kwargs=True)
    return loss
