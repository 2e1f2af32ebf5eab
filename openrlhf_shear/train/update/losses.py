"""Policy losses: GSPO with a gradient per token, the check that credit arrives, and log-probs without all logits."""

from functools import partial

import torch
from openrlhf.models import Actor, PolicyLoss
from openrlhf.models.ring_attn_utils import unpad_and_slice_tensor
from openrlhf.models.utils import compute_entropy, log_probs_from_logits, masked_mean
from openrlhf.utils.logging_utils import init_logger
from torch.utils.checkpoint import checkpoint

from openrlhf_shear.credit.captured import plain_head
from openrlhf_shear.credit.token_gradients import CreditLostError, CreditProbe, equal_within_rows
from openrlhf_shear.train.checkpoints.saveable import without_adapters
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


class ChunkedActor(Actor):
    """OpenRLHF's actor with logits of `tokens` tokens at a time (`--actor.logits_chunk`).

    Upstream makes float32 logits of all tokens of a pass, and the loss their gradient: 10 bytes a token and word of the
    vocabulary. Here the LM head itself returns log-probs, and makes the logits of each chunk once more in the backward
    pass: 2 V d further operations a token. DeepSpeed's, torch's and Liger's fused losses make gradients too early, lack
    entropies or the temperature, or round to bfloat16.

    One call of the LM head makes all chunks. So ZeRO-3 gathers its weight as always: once for the forward pass, and
    once for the backward pass, in which the chunks run again. The weight's gradient is a sum over chunks, in its dtype.
    """

    def __init__(self, tokens: int, *args, temperature: float = 1.0, **kwargs):
        """Args: as upstream's, after `tokens`.

        Raises RefusedError: the model's logits are not the product of its LM head (`plain_head`).
        """
        super().__init__(*args, **kwargs)  # at temperature 1, as log-probs must not be divided by it
        try:
            head = plain_head(without_adapters(self.model))
        except ValueError as error:
            raise RefusedError(f"--actor.logits_chunk makes logits from the LM head: {error}") from error
        self._tokens, self._sampled_at = tokens, temperature
        head.forward = partial(self._log_probs, head)

    def forward(self, sequences, action_mask, attention_mask=None, return_output=False, return_entropy=False, **others):
        """Return upstream's result for an action mask: log-probs (B, A), with `return_output` also the output."""
        labels = torch.roll(sequences, -1, 1)
        if self.packing_samples:
            labels = unpad_and_slice_tensor(sequences, attention_mask, others.get("ring_attn_group"))[2]
        self._labels, self._entropies = labels, return_entropy
        output = super().forward(sequences, None, attention_mask, return_output=True, allgather_logits=True, **others)
        log_probs, *entropies = output["logits"].view(*sequences.shape, -1)[:, :-1].unbind(-1)
        if return_entropy:
            (output.entropy,) = entropies
        log_probs = log_probs[:, -action_mask.shape[1] :] * action_mask.float()
        return (log_probs, output) if return_output else log_probs

    def _log_probs(self, head: torch.nn.Linear, states: torch.Tensor) -> torch.Tensor:
        """Return the log-probs of the labels, (1, T, 1) or (B, S, 1) float32; of 2 columns, the other has entropies."""
        chunks = zip(states.flatten(0, 1).split(self._tokens), self._labels.flatten().split(self._tokens), strict=True)
        how = {"use_reentrant": False, "preserve_rng_state": False}
        found = [checkpoint(self._of_chunk, head, *chunk, self._entropies, **how) for chunk in chunks]
        return torch.cat(found).view(*states.shape[:-1], -1)

    def _of_chunk(self, head: torch.nn.Linear, states: torch.Tensor, labels: torch.Tensor, entropies: bool):
        logits = torch.nn.functional.linear(states, head.weight, head.bias).float()
        if self._sampled_at != 1.0:
            logits.div_(self._sampled_at)
        columns = [compute_entropy(logits)] if entropies else []
        return torch.stack([log_probs_from_logits(logits, labels), *columns], -1)
