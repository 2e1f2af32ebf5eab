"""Log-probs of the policy for `--actor.logits_chunk`, without the logits of all tokens of a pass at once.

Upstream's `Actor.forward` makes float32 logits of all tokens, and the loss their gradient, in float32 and bfloat16: 10
bytes a token and entry of the vocabulary. Here the LM head itself returns log-probs. It takes some tokens at a time,
and makes their logits once more in the backward pass: 2 V d further operations a token.

Nothing at hand does this. DeepSpeed's `TiledFusedLogitsLoss` makes gradients in the forward pass, before those of the
log-probs are known. torch's `linear_cross_entropy` returns losses in bfloat16. Liger's fused loss knows no entropies
and no temperature. Upstream's --ds.use_liger_kernel does not reach it, as `Actor` gives the model no labels.
"""

from functools import partial

import torch
from openrlhf.models import Actor
from openrlhf.models.ring_attn_utils import unpad_and_slice_tensor
from openrlhf.models.utils import compute_entropy, log_probs_from_logits
from torch.utils.checkpoint import checkpoint

from openrlhf_shear.credit.logits import plain_head
from openrlhf_shear.train.checkpoints.saveable import without_adapters
from openrlhf_shear.train.screen.outcome import RefusedError


class ChunkedActor(Actor):
    """OpenRLHF's actor with logits of `tokens` tokens at a time.

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
