"""Values of prefixes, against a tabular policy whose values are computed by enumeration in float64."""

import itertools
import math
import random
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

import pytest
import torch

from openrlhf_shear.lab.rollouts import Rollouts
from openrlhf_shear.lab.values import prefix_values
from openrlhf_shear.tasks.situation import LOST, Situation

PAD, EOS, A, B = range(4)
BUDGET = 5
PROMPT = (A, B)
N = 1000  # continuations


@dataclass
class Tabular:
    """A policy whose next token has a probability that is a table's entry of all tokens before it."""

    table: callable  # response so far -> probabilities of EOS, A, B
    tokenizer = SimpleNamespace(pad_token_id=PAD, eos_token_id=EOS)
    model = property(lambda self: self)

    def generate(self, input_ids, attention_mask, max_new_tokens, temperature, **_):
        assert temperature == 1.0
        kept = [row[seen.bool()].tolist() for row, seen in zip(input_ids, attention_mask, strict=True)]
        responses, new = [tuple(row[len(PROMPT) :]) for row in kept], []
        for _ in range(max_new_tokens):
            drawn = torch.multinomial(torch.tensor([self.table(response) for response in responses]), 1)[:, 0].tolist()
            tokens = [PAD if EOS in r else (EOS, A, B)[i] for r, i in zip(responses, drawn, strict=True)]
            responses = [(*response, token) for response, token in zip(responses, tokens, strict=True)]
            new.append(tokens)
        return torch.cat([input_ids, torch.tensor(new).T], 1)


@cache
def unlike(response):
    """Probabilities that depend on every token."""
    rng = random.Random(str(response))
    weights = [rng.uniform(0.1, 1) for _ in range(3)]
    return tuple(weight / sum(weights) for weight in weights)


@cache
def sure(response):
    """A policy that is nearly sure of every second token."""
    return (0.004, 0.002, 0.994) if len(response) % 2 else (0.2, 0.5, 0.3)


@cache
def by_parity(response):
    """Probabilities that depend on the length and on the parity of the number of A."""
    return (0.1, 0.6, 0.3) if (response.count(A) + len(response)) % 2 else (0.2, 0.3, 0.5)


def is_right(response):
    return response.count(A) % 2 == 1


def value(table, response):
    """Enumeration: the chance of a right answer after these tokens."""
    if EOS in response or len(response) == BUDGET:
        return float(is_right(response))
    pairs = zip(table(response), (EOS, A, B), strict=True)
    return math.fsum(p * value(table, (*response, token)) for p, token in pairs)


@dataclass
class Parity:
    """The task: a response is right if it has an odd number of A."""

    known: bool  # whether its simulator says so
    budget = BUDGET

    def check(self, tokenizer, problem, ids):
        return SimpleNamespace(correct=is_right(tuple(ids.tolist())))

    def situations(self, tokenizer, problem, ids):
        shown = [i for i in ids.tolist() if i != EOS]
        if not self.known:
            return [LOST] * (len(shown) + 1)
        return [Situation((at, shown[:at].count(A) % 2)) for at in range(len(shown) + 1)]


def rollouts_of(responses, group_size):
    rows = [torch.tensor([*PROMPT, *response]) for response in responses]
    sequences = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    ends = torch.tensor([len(row) for row in rows])[:, None]
    position = torch.arange(1, sequences.shape[1])
    mask = (position >= len(PROMPT)) & (position < ends)
    lengths = tuple(map(len, responses))
    right = tuple(map(is_right, responses))
    return Rollouts(sequences, mask, lengths, right, (None,) * len(rows), group_size, Tabular.tokenizer)


def found_of(table, responses, known=False, group_size=2, **more):
    rollouts = rollouts_of(responses, group_size)
    log_probs = torch.zeros(rollouts.mask.shape)
    for i, response in enumerate(responses):
        for t, token in enumerate(response):
            p = table(response[:t])[(EOS, A, B).index(token)]
            log_probs[i, len(PROMPT) - 1 + t] = math.log(p)
    asked = [None] * (len(responses) // group_size)
    given = {"continuations": N, "seed": 3, "tolerance": 0.0} | more
    return prefix_values(Tabular(table), Parity(known), asked, rollouts, log_probs, **given)


RESPONSES = [(A, B, A, A, EOS), (B, B, A, EOS), (A, A, A, B, B), (EOS,)]


def off(found, truth, allowed=0.0):
    """Whether a mean of N outcomes is off by more than 5 standard errors; one in 2 million is by chance."""
    return abs(found - truth) > 5 * math.sqrt(truth * (1 - truth) / N) + allowed + 1e-12


@pytest.mark.parametrize("table", [unlike, by_parity])
def test_every_value_is_that_of_the_enumeration(table):
    found = found_of(table, RESPONSES)
    for response, values, sampled in zip(RESPONSES, found.values, found.sampled, strict=True):
        assert (values.dtype, len(values)) == (torch.float64, len(response) + 1)
        assert sampled.tolist() == [True] * len(response) + [False]
        assert values[-1] == is_right(response)
        for t in range(len(response)):
            assert not off(values[t].item(), value(table, response[:t])), (response, t)
    assert found.drawn == N * sum(map(len, RESPONSES)) and found.exact == pytest.approx(4 / 19)


def test_advantages_are_differences_and_sum_to_the_reward_less_the_first_value():
    found = found_of(unlike, RESPONSES, continuations=4)
    for response, values, advantages in zip(RESPONSES, found.values, found.advantages, strict=True):
        assert advantages.tolist() == [values[t + 1].item() - values[t].item() for t in range(len(response))]
        assert advantages.sum().item() == pytest.approx(is_right(response) - values[0].item())


def test_a_true_advantage_is_at_most_the_policy_s_doubt_of_the_token():
    """The bound behind the tolerance, by enumeration of all prefixes and tokens."""
    for table in (unlike, sure, by_parity):
        for length in range(BUDGET):
            for response in itertools.product((A, B), repeat=length):
                for p, token in zip(table(response), (EOS, A, B), strict=True):
                    advantage = value(table, (*response, token)) - value(table, response)
                    assert abs(advantage) <= 1 - p + 1e-12


def test_sure_tokens_share_a_value_within_the_tolerance():
    responses = [(A, B, A, B, EOS), (B, B, B, B, A)]
    found = found_of(sure, responses, tolerance=0.01)
    assert found.drawn == N * (3 + 3), "two sure tokens of each rollout share the value before them"
    for response, values in zip(responses, found.values, strict=True):
        assert (values[1], values[3]) == (values[2], values[4])
        for t in range(len(response)):
            assert not off(values[t].item(), value(sure, response[:t]), 0.01)
    assert found_of(sure, responses, tolerance=0.001).drawn == N * 10


def test_equal_situations_share_a_value_in_a_group_and_in_no_other():
    responses = [(A, B, B, B, B), (B, A, B, B, B), (A, B, B, B, B), (B, B, B, B, B)]
    found = found_of(by_parity, responses, known=True)
    first, second, third, fourth = (values.tolist() for values in found.values)
    assert first[2:5] == second[2:5] and first[0] == second[0] and first[1] != second[1]
    assert third[0] == fourth[0] != first[0] and first[2] != third[2]
    # situations (length, parity) of each group: 1 + 2 + 1 + 1 + 1, and 1 + 2 + 2 + 2 + 2
    assert found.drawn == N * (6 + 9)
    for response, values in zip(responses, found.values, strict=True):
        for t in range(len(response)):
            assert not off(values[t].item(), value(by_parity, response[:t]))


def test_what_the_task_settles_is_not_sampled():
    class Settled(Parity):
        def situations(self, tokenizer, problem, ids):
            return [Situation(at, 0.25 if at == 2 else None) for at in range(len(ids) + 1)]

    rollouts = rollouts_of(RESPONSES[:2], 2)
    line = Tabular(unlike), Settled(True), [None], rollouts, torch.zeros(rollouts.mask.shape)
    found = prefix_values(*line, continuations=3, seed=0)
    assert [values[2].item() for values in found.values] == [0.25, 0.25]
    places = [[t for t, sampled in enumerate(row.tolist()) if sampled] for row in found.sampled]
    assert places == [[0, 1, 3, 4], [0, 1, 3]]
    assert found.drawn == 3 * 4, "the keys 0, 1, 3 and 4"


def test_a_seed_gives_the_same_values_and_leaves_torch_s_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second, other = (found_of(unlike, RESPONSES, continuations=8, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(a, b) for a, b in zip(first.values, second.values, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.values, other.values, strict=True))


def test_no_continuation_is_refused():
    with pytest.raises(ValueError, match=r"continuations must be at least 1: got 0; use e\.g\. 64"):
        found_of(unlike, RESPONSES, continuations=0)
