"""`error_odds` with the words in place of the hidden states: the control for "does the rise take hidden states?".

The odds are those of `openrlhf_shear.credit.rules.error_odds`. r_t is the rise of SHEAR's weights for n-grams of the
text, where two tokens are alike if they and the tokens before them are equal (`openrlhf_shear.credit.rules.text`).

    shear-lab --rules text_odds:TextOddsRule/surprisal=4/entropy=0/reach=32, ...      with examples/rules on PYTHONPATH
"""

import torch

from openrlhf_shear.config.shear import ErrorOddsConfig
from openrlhf_shear.credit import RolloutGroup, shear_weights
from openrlhf_shear.credit.rules.error_odds import ErrorOddsRule
from openrlhf_shear.credit.rules.text import ngram_states


class TextOddsRule(ErrorOddsRule):
    """Blames tokens by the odds of the first error, from the text and the sampled tokens' probabilities.

    Args:
        ngram: tokens of an n-gram (>= 1).
        odds: knobs of `error_odds`.
    """

    name = "text_odds"

    def __init__(self, ngram: int = 3, **odds):
        super().__init__(ErrorOddsConfig(**odds))
        if not (isinstance(ngram, int) and ngram >= 1):
            raise ValueError(f"text_odds.ngram must be at least 1: got {ngram!r}; use a number of tokens, e.g. 3")
        self.ngram = ngram
        self.needs = self.needs - {"hidden_states"} | {"token_ids"}

    def signal(self, group: RolloutGroup) -> tuple[list[torch.Tensor], dict[str, float]]:
        states = ngram_states(group.token_ids, group.correct, self.ngram)
        result = shear_weights(states, group.correct, self.config.shear, self.search)
        return result.weights, {"opposed": float(result.opposed), "unconverged_fraction": result.unconverged_fraction}
