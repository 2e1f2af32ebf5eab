"""`error_odds` with the words in place of the hidden states: the control for "does the rise take hidden states?".

The odds are those of `error_odds.py`. r_t is the rise of SHEAR's weights for n-grams of the text, where two tokens are
alike if they and the tokens before them are equal (`openrlhf_shear.credit.rules.text`).

    shear-lab --rules text_odds:TextOddsRule/surprisal=4/entropy=0/reach=32, ...      with examples/rules on PYTHONPATH
"""

import torch
from openrlhf_shear_examples.error_odds import ErrorOddsRule

from openrlhf_shear.credit import RolloutGroup, shear_weights
from openrlhf_shear.credit.rules.text import ngram_states


class TextOddsRule(ErrorOddsRule):
    """Blames tokens by the odds of the first error, from the text and the sampled tokens' probabilities.

    Args:
        ngram: tokens of an n-gram (>= 1).
        others: as of `ErrorOddsRule`.
    """

    name = "text_odds"

    def __init__(
        self,
        ngram: int = 3,
        surprisal: float = 2.0,
        entropy: float = 4.0,
        rise: float = 10.0,
        reach: int = 8,
        window: int = 8,
        stride: int = 1,
        epsilon_rel: float = 0.03,
    ):
        super().__init__(surprisal, entropy, rise, reach, window, stride, epsilon_rel)
        if not (isinstance(ngram, int) and ngram >= 1):
            raise ValueError(f"text_odds.ngram must be at least 1: got {ngram!r}; use a number of tokens, e.g. 3")
        self.ngram = ngram
        self.needs = self.needs - {"hidden_states"} | {"token_ids"}

    def signal(self, group: RolloutGroup) -> tuple[list[torch.Tensor], dict[str, float]]:
        states = ngram_states(group.token_ids, group.correct, self.ngram)
        result = shear_weights(states, group.correct, self.config, self.search)
        return result.weights, {"opposed": float(result.opposed), "unconverged_fraction": result.unconverged_fraction}
