"""Entries: a transfer repeated, its effect on two accounts, and all balances after it. The last balances answer.

    may ana lends 3 to ben so ana 20 loses 3 17 , ben 12 gains 3 15 : ana 17 ben 15 cleo 18 dan 19 eva 11 finn 14 .

`then` may replace `so`, and `and` the comma. A verb with a misconception is a fork of three ways: the right word, the
misconception with probability q, and its **benign twin** with the same probability q. The twin is another word for the
right thing. The following words agree with the choice, so that a misconception is as fluent as the truth, and as
surprising as its twin.

    direction    ana 20 gains 3 23 , ben 12 loses 3 9        twin: ana 20 drops 3 17 , ben 12 picks 3 15
    row          ana 20 loses 3 17 , ana 17 gains 3 20       twin: ana 20 loses 3 17 , other 12 gains 3 15
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from openrlhf_shear.tasks.arithmetic.problems import EOS
from openrlhf_shear.tasks.bookkeeping.stories import (
    DIRECTION,
    MISCONCEPTIONS,
    MOST,
    ROW,
    TRANSFERS,
    Problem,
    Transfer,
    state_text,
)

Q = 1 / 3  # probability of a misconception at a fork, and of its twin: all three ways are equally likely
OTHER = "other"
SO, AND = ("so", "then"), (",", "and")
_LOSES, _GAINS = ("loses", "drops"), ("gains", "picks")  # usual, twin
SIDES = {word: (sign, twin) for sign, pair in ((-1, _LOSES), (1, _GAINS)) for twin, word in enumerate(pair)}
ENTRY_TOKENS = 32
BUDGET = TRANSFERS * ENTRY_TOKENS + 1  # tokens of a response, with the end-of-text token


@dataclass(frozen=True)
class Fork:
    """The words that can stand at a token."""

    right: tuple[str, ...]  # equally likely without a misconception; with it, the last is the twin
    misconception: str | None = None

    def draw(self, rng: random.Random, q: float) -> str:
        if self.misconception is None:
            return rng.choice(self.right)
        return rng.choices((*self.right, self.misconception), (1 - 2 * q, q, q))[0]


@dataclass(frozen=True)
class Check:
    """Comparison of a response with the truth. Indices count words, which are tokens."""

    correct: bool  # the response ends with the true balances, for which the reward pays
    first_error: int | None  # the first word that no right response has at its place; None without an error
    misconceived: bool = False  # whether that word is the misconception of its fork, rather than a slip
    twins: tuple[int, ...] = ()  # indices of the benign twins before the first error

    @property
    def lucky(self) -> bool:
        return self.correct and self.first_error is not None


class OutOfWords(Exception):
    """A wrong balance has no word."""


def walk(problem: Problem) -> Iterator[Fork]:
    """Yield the forks of a response, word by word; the caller sends each chosen word.

    After a misconception, the forks agree with it. After any other wrong word, the forks have no meaning.

    Raises OutOfWords: a wrong balance has no word.
    """
    balances = dict(problem.balances)
    for transfer in problem.transfers:
        for word in transfer.words:
            yield Fork((word,))
        yield from _booked(transfer, balances)
        for word in state_text(balances).split():
            yield Fork((word,))


def _booked(transfer: Transfer, balances: dict[str, int]) -> Iterator[Fork]:
    """Yield the forks in the middle of an entry, and change the balances as the chosen words say."""
    misconception = MISCONCEPTIONS.get(transfer.verb)
    yield Fork(SO)
    first, second = transfer.subject, transfer.other
    yield Fork((first,))
    usual, twin = _LOSES if first == transfer.giver else _GAINS
    wrong = _GAINS[0] if first == transfer.giver else _LOSES[0]
    yield Fork((str(balances[first]),))
    verb = yield Fork((usual, twin), wrong) if misconception == DIRECTION else Fork((usual,))
    sign, is_twin = SIDES.get(verb, (0, 0))
    yield from _sum(balances, first, sign * transfer.amount)
    yield Fork(AND)
    name = yield Fork((second, OTHER), first) if misconception == ROW else Fork((second,))
    name = second if name not in balances else name
    yield Fork((str(balances[name]),))
    yield Fork(((_GAINS if sign < 0 else _LOSES)[is_twin],))
    yield from _sum(balances, name, -sign * transfer.amount)
    yield Fork((":",))


def _sum(balances: dict[str, int], name: str, change: int) -> Iterator[Fork]:
    """Yield the amount and the new balance."""
    balances[name] += change
    if not 0 <= balances[name] <= MOST:
        raise OutOfWords
    yield Fork((str(abs(change)),))
    yield Fork((str(balances[name]),))


def write_entries(problem: Problem, rng: random.Random, q: float = Q) -> str:
    """Write a response whose forks are misconceptions and twins with probability `q` each; with q = 0 it is right."""
    while True:
        try:
            return " ".join(_drawn(problem, rng, q))
        except OutOfWords:
            continue


def _drawn(problem: Problem, rng: random.Random, q: float) -> list[str]:
    forks, words = walk(problem), []
    fork = next(forks)
    while fork is not None:
        words.append(fork.draw(rng, q))
        fork = sent(forks, words[-1])
    return words


def sent(forks: Iterator[Fork], word: str) -> Fork | None:
    """Send a word to `walk`, and return the next fork; None after the last."""
    try:
        return forks.send(word)
    except StopIteration:
        return None


def check(problem: Problem, words: Sequence[str]) -> Check:
    """Compare the words of a response (without the end-of-text token) with the truth. No response raises.

    A right response that stops early errs at its end-of-text token; a response that continues after the end errs there.
    """
    answer = state_text(problem.states[-1]).split()
    correct = list(words[-len(answer) :]) == answer
    forks, twins = walk(problem), []
    fork = next(forks)
    for i, word in enumerate(words):
        if fork is None or word not in fork.right:
            return Check(correct, i, fork is not None and word == fork.misconception, tuple(twins))
        if fork.misconception and word == fork.right[-1]:
            twins.append(i)
        fork = sent(forks, word)
    return Check(correct, None if fork is None else len(words), False, tuple(twins))


def response_words(tokenizer, ids: torch.Tensor) -> list[str]:
    """Return the words of a response, `(T_i,)` token ids, without a final `<eos>`."""
    words = tokenizer.convert_ids_to_tokens(ids.tolist())
    return words[:-1] if words and words[-1] == EOS else words
