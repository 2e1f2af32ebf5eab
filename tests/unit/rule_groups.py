"""Groups with everything that a rule can ask for, the rules by name, and distributions in float64, entry by entry.

The rules multiply in float32, as the policy does. A logit is a sum of `WIDTH` products of numbers near 1, so it is off
by some 1e-6, and so are probabilities.
"""

import math
import random
from dataclasses import replace

import numpy as np
import torch

from openrlhf_shear.config import RULES
from openrlhf_shear.config.names import parse_rule
from openrlhf_shear.config.spec import credit_spec
from openrlhf_shear.credit import Credit, CreditRule, RolloutGroup
from openrlhf_shear.credit.captured import LMHead
from openrlhf_shear.credit.checks import checked_credits
from openrlhf_shear.credit.registry import make_rule
from openrlhf_shear.credit.rule import OF_ROLLOUTS, StepScores

NAN = float("nan")
VOCABULARY, WIDTH = 13, 5
TEMPERATURE = 1.3
SMALL = {"shear": "shear/window=4/stride=2", "text": "text/window=4/stride=2", "error_odds": "error_odds/reach=2"}
NAMES = [SMALL.get(name, name) for name, rule in RULES.items() if rule.traits.kind != "update"]


class Continued:
    """Stands in for the policy: continues prefixes, whose values depend on their tokens alone; it lists the places."""

    def __init__(self, ids):
        self.texts, self.places = [row.tolist() for row in ids], []

    def __call__(self, places, n):
        self.places += [(i, t, n) for i, t in places]
        return [value_of(self.texts[i][:t], n) for i, t in places]


def value_of(prefix, samples) -> float:
    return random.Random(repr((tuple(prefix), samples))).randrange(samples + 1) / samples


def full_group(lengths, rewards, seed=0, dtype=torch.float32) -> RolloutGroup:
    """Random inputs; log-probs are those of the distributions; a reward above 0.5 is correct. Some entropies are 0."""
    rng = np.random.default_rng(seed)
    weight = torch.tensor(rng.normal(size=(VOCABULARY, WIDTH)), dtype=dtype)
    states = tuple(torch.tensor(rng.normal(size=(n, WIDTH)) + 0.5, dtype=dtype) for n in lengths)
    ids = tuple(torch.tensor(rng.integers(0, VOCABULARY - 3, size=n), dtype=torch.int64) for n in lengths)
    rewards = tuple(map(float, rewards))
    correct = tuple(None if math.isnan(reward) else reward > 0.5 for reward in rewards)
    head = LMHead(weight, TEMPERATURE)
    made = RolloutGroup(0, rewards, correct, tuple(lengths), source_states=states, token_ids=ids, lm_head=head)
    logs = tuple(
        torch.tensor([math.log(probabilities(made, i, t)[int(ids[i][t])]) for t in range(n)])
        for i, n in enumerate(lengths)
    )

    def near():
        return tuple(row + torch.tensor(rng.normal(size=len(row)) * 0.3, dtype=torch.float32) for row in logs)

    entropies = (np.round(rng.exponential(size=n), 1) * (rng.random(n) > 0.2) for n in lengths)
    return replace(
        made,
        log_probs=logs,
        ref_log_probs=near(),
        hint_log_probs=near(),
        hidden_states=tuple(torch.tensor(rng.normal(size=(n, WIDTH)), dtype=dtype) for n in lengths),
        entropies=tuple(torch.tensor(row, dtype=torch.float32) for row in entropies),
        prm_scores=tuple(_step_scores(rng, n) for n in lengths),
        continuations=Continued(ids),
    )


def _step_scores(rng, length) -> StepScores:
    """Scores of up to five steps; some rollouts have none, or fewer than steps."""
    steps = int(rng.integers(0, min(length, 5) + 1))
    ends = np.sort(rng.choice(length, steps, replace=False)) if steps else []
    scores = rng.choice([0.0, 1.0, 0.5, *rng.random(9)], int(rng.integers(0, steps + 1)))
    return StepScores.of([int(end) for end in ends], scores.tolist())


def random_group(seed: int) -> RolloutGroup:
    """4 to 8 rollouts of 0 to 12 tokens, of both outcomes; some are empty, some have one token or no reward."""
    rng = np.random.default_rng(seed)
    lengths = [5, 9, *(int(rng.choice([0, 1, rng.integers(2, 13)])) for _ in range(rng.integers(2, 7)))]
    rewards = [1.0, 0.0, *(rng.choice([1.0, 0.0, NAN], p=[0.4, 0.4, 0.2]) for _ in lengths[2:])]
    return full_group(lengths, rewards, seed)


def chosen(group: RolloutGroup, rollouts) -> RolloutGroup:
    """Return the group with these rollouts, in this order."""
    rows = {
        name: tuple(column[i] for i in rollouts)
        for name in ("rewards", "correct", "lengths", *OF_ROLLOUTS)
        if (column := getattr(group, name)) is not None
    }
    return replace(group, **rows, continuations=Continued(rows["token_ids"]))


def rule_of(name: str) -> CreditRule:
    """Return a built-in rule by its name and knobs."""
    spec = credit_spec(parse_rule(name))
    return make_rule(spec.name, spec.config, "test")


def credit_of(name: str, group: RolloutGroup) -> Credit:
    (credit,) = checked_credits(rule_of(name), [group])
    return credit


def rows_of(name: str, group: RolloutGroup) -> list[list[float]]:
    """Return a rule's advantages, else its weights for blame, else its weights."""
    tensors = credit_of(name, group).tensors()
    kind = next(kind for kind in ("advantages", "negative_weights", "weights") if kind in tensors)
    return [row.tolist() for row in tensors[kind]]


def probabilities(group: RolloutGroup, i: int, t: int) -> list[float]:
    """The distribution from which token t of rollout i was drawn: V numbers."""
    state, weight = group.source_states[i][t].tolist(), group.lm_head.weight.tolist()
    exps = [math.exp(math.fsum(a * b for a, b in zip(state, row, strict=True)) / TEMPERATURE) for row in weight]
    return [value / math.fsum(exps) for value in exps]


def grpo(rewards) -> list[float]:
    """GRPO's advantages in float64; 0 for a failed reward."""
    known = [reward for reward in rewards if not math.isnan(reward)]
    mean = math.fsum(known) / max(len(known), 1)
    deviation = math.sqrt(math.fsum((r - mean) ** 2 for r in known) / max(len(known) - 1, 1))
    return [0.0 if math.isnan(r) or deviation == 0 else (r - mean) / (deviation + 1e-9) for r in rewards]


def in_chunks(monkeypatch, rows: int) -> None:
    """Make the LM head give the log-probs of this many tokens at a time."""
    monkeypatch.setattr("openrlhf_shear.credit.captured.CHUNK_BYTES", 4 * VOCABULARY * rows)
