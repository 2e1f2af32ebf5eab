"""Check that token credit reaches the policy: the gradient of each token's log-prob beside the token's advantage.

A loss whose ratio is a token's gives token t a gradient in proportion to its advantage A_t. A loss with one ratio for a
rollout, as GSPO's, gives every token that of the rollout's mean advantage. What a credit rule said about tokens is then
gone, and no metric shows it. Reading the gradient itself finds such a loss without knowing its name.

Legend: B rollouts, A padded response tokens, g_t the gradient of the loss with respect to the log-prob of token t.
"""

from collections.abc import Callable

import torch

LEAST_SHARE = 0.5  # of a rollout's token credit that a loss must carry: GSPO carries 0, PPO 1


def equal_within_rows(advantages: torch.Tensor, mask: torch.Tensor) -> bool:
    """Return whether all response tokens of each rollout have the same advantage, (B, A) or (B,); `mask` is bool."""
    if advantages.dim() == 1:
        return True
    first = advantages.gather(1, mask.int().argmax(1, keepdim=True))
    return not ((advantages != first) & mask).any()


class CreditLostError(RuntimeError):
    """Error of a loss that does not carry the credit of tokens."""


def token_share(gradient: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> tuple[float, int] | None:
    """Return the share of token credit that a gradient carries, and the rollouts that tell it; None if none does.

    In each rollout -g is scaled to its advantages by least squares. The share is the slope of the scaled gradients over
    the advantages, both less their means over the rollout. It is 1 if they are proportional, and 0 if all tokens of a
    rollout have the same gradient. Unlike a correlation it stays near 1 if a loss multiplies tokens by other factors,
    such as an importance ratio. Tokens with an advantage but no gradient, which a loss has clipped or filtered, do not
    count.

    Worked example: advantages 2, 0, 1, 0.5 and gradients -2, 0, -1, -0.5 -> 1; gradients of -0.875 each -> 0.

    Args:
        gradient, advantages: (B, A), any float dtype.
        mask: (B, A), nonzero at response tokens.
    """
    along = across = 0.0
    rollouts = 0
    for row, credit, keep in zip(-gradient.double(), advantages.double(), mask.bool(), strict=True):
        keep = keep & ((row != 0) | (credit == 0))
        row, credit = row[keep], credit[keep]
        spread = credit - credit.mean()
        # Rounding of equal advantages is no credit. Nor can a rollout whose gradients all cancel be scaled.
        if not row.any() or not spread.norm() > 1e-4 * credit.norm() or not (scale := row @ credit):
            continue
        scaled = row * (credit @ credit / scale)
        along += float((scaled - scaled.mean()) @ spread)
        across += float(spread @ spread)
        rollouts += 1
    return (along / across, rollouts) if rollouts else None


class CreditProbe:
    """Check of the first micro-batch of a run whose rollouts have different advantages at different tokens.

    Attributes:
        done: whether a micro-batch was checked.
    """

    def __init__(self, rule: str, remedy: str, say: Callable[[str], None]):
        """
        Args:
            rule: the name of the credit rule.
            remedy: what to use instead of the loss.
            say: takes the line about the result.
        """
        self._rule, self._remedy, self._say, self.done = rule, remedy, say, False

    def look(self, loss: torch.Tensor, log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> None:
        """Check a micro-batch before its backward pass, which needs the graph again.

        Args:
            loss: (), made of `log_probs`.
            log_probs, advantages, mask: (B, A), as the loss has read them.

        Raises CreditLostError: the loss carries less than `LEAST_SHARE` of the token credit.
        """
        if self.done or not log_probs.requires_grad:
            return
        (gradient,) = torch.autograd.grad(loss, log_probs, retain_graph=True, allow_unused=True)
        found = None if gradient is None else token_share(gradient, advantages, mask)
        if found is None:
            return
        self.done, (share, rollouts) = True, found
        line = f"{share:.3f} of the token credit of {self._rule} is in the gradient of {rollouts} rollouts"
        if not share >= LEAST_SHARE:  # NaN too
            raise CreditLostError(
                f"only {line}: this loss gives the tokens of a rollout another gradient than their advantages, "
                f"e.g. because it takes one ratio for the whole rollout; use {self._remedy}. Nothing was applied"
            )
        self._say(f"credit check: {line}")
