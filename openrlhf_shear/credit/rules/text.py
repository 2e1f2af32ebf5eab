"""SHEAR's formula on the words in place of the hidden states: the control for "is it the states, or the text?".

A token's state is the one-hot vector of its n-gram: the token and the `ngram` - 1 response tokens before it. So the
cost between tokens of opposing rollouts is 0 where their n-grams are equal, and sqrt(2) where they differ. The rest is
SHEAR (`credit.shear`). The mean norm is 1, so `epsilon_rel` and `epsilon` mean the same.

The rule comes from this project. It is no method, but what a gain of hidden states has to exceed.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from openrlhf_shear.credit.rule import Credit, RolloutGroup
from openrlhf_shear.credit.rules.shear import ShearRule


class TextRule(ShearRule):
    """SHEAR's weights, `A~_t = A * omega_t`, of n-grams of the text."""

    name = "text"
    needs = frozenset({"token_ids"})

    def credit(self, group: RolloutGroup) -> Credit:
        states = ngram_states(group.token_ids, group.correct, self.config.ngram)
        if self.search.backend == "triton":
            self.search = replace(self.search, backend="auto")  # Triton is for hidden states, these are on the CPU
        return super().credit(replace(group, hidden_states=states))

    def evidence(self, group: RolloutGroup, credit: Credit) -> None:
        """Return no evidence: states of one outcome are not told apart (`ngram_states`)."""


def ngram_states(
    token_ids: Sequence[torch.Tensor], correct: Sequence[bool | None], ngram: int
) -> tuple[torch.Tensor, ...]:
    """Return a one-hot vector for each token's n-gram: G tensors (T_i, d) float32 on the CPU.

    Distances between tokens of *opposing* rollouts are exact. All n-grams that only correct rollouts have share an
    axis, as do those that only incorrect rollouts have: d is two more than the number of n-grams that both have.

    Args:
        token_ids: G tensors (T_i,) int64, the response tokens.
        correct: G outcomes; a rollout of unknown outcome opposes none, and its n-grams do not count.
        ngram: tokens of an n-gram (>= 1). The first tokens of a response have fewer, which equal only each other.

    Example: the bigram (5, 6) is in both rollouts.

    >>> ids = [torch.tensor([5, 6]), torch.tensor([7, 5, 6])]
    >>> [states.argmax(1).tolist() for states in ngram_states(ids, [True, False], 2)]
    [[1, 0], [2, 2, 0]]
    """
    lengths = [len(ids) for ids in token_ids]
    padded = [torch.cat([ids.new_full((ngram - 1,), -1), ids]) for ids in token_ids]
    grams = [torch.stack([ids[k : k + n] for k in range(ngram)], 1) for ids, n in zip(padded, lengths, strict=True)]
    _, number = torch.unique(torch.cat(grams), dim=0, return_inverse=True)
    of_tokens = [outcome for outcome, length in zip(correct, lengths, strict=True) for _ in range(length)]
    right, wrong = (
        torch.isin(number, number[torch.tensor([outcome is side for outcome in of_tokens], dtype=torch.bool)])
        for side in (True, False)
    )
    shared, axis = torch.unique(number[right & wrong], return_inverse=True)
    at = torch.where(right, len(shared), len(shared) + 1)
    at[right & wrong] = axis
    return torch.zeros(len(at), len(shared) + 2).scatter_(1, at[:, None], 1.0).split(lengths)
