"""Blame incorrect rollouts in their lines with numbers, more and more over the first steps.

    --algo.advantage.estimator examples.rules.number_lines_rule:NumberLinesRule/over=50

w_t = 1 in a line with a digit, else 1 - min(step / over, 1). Correct rollouts keep weight 1, and so does a rollout
without such a line. A token that ends a line belongs to that line.
"""

import torch

from openrlhf_shear.credit import Credit, CreditRule, RolloutGroup


class NumberLinesRule(CreditRule):
    """Blames lines with numbers."""

    name = "number_lines"
    needs = frozenset({"token_texts"})

    def __init__(self, over: int = 50):
        self.over = over  # steps

    def credit(self, group: RolloutGroup) -> Credit:
        other = 1 - min(group.step / self.over, 1.0)
        weights = [torch.ones(length) for length in group.lengths]
        for weight, texts, correct in zip(weights, group.token_texts, group.correct, strict=True):
            numbered = in_numbered_line(texts)
            if correct is False and any(numbered):
                weight[~torch.tensor(numbered)] = other
        return Credit(weights, metrics={"other_weight": other})


def in_numbered_line(texts: tuple[str, ...]) -> list[bool]:
    """Return for each token whether its line has a digit.

    >>> in_numbered_line(("So", " 1", "+1", "\\n", "done"))
    [True, True, True, True, False]
    """
    line, lines = 0, []  # of each token
    for text in texts:
        lines.append(line)
        line += "\n" in text
    numbered = {at for at, text in zip(lines, texts, strict=True) if any(c.isdigit() for c in text)}
    return [at in numbered for at in lines]
