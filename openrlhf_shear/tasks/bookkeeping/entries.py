"""Entries: a transfer repeated, its effect on two accounts, and all balances after it. The last ones are the answer.

    may ana lends 3 to ben so ana 20 loses 3 17 , ben 12 gains 3 15 : ana 17 ben 15 cleo 18 dan 19 eva 11 finn 14 .

Some choices mean nothing: `then` may replace `so`, and `and` the comma; the paraphrased form has far more of them
(`forms`). A verb with a misconception is a fork of three ways: the right word, the misconception with probability q,
and its **benign twin** with the same probability q. The twin is another word for the right thing. The following words
agree with the choice, so that a misconception is as fluent as the truth, and as surprising as its twin.

    direction    ana 20 gains 3 23 , ben 12 loses 3 9        twin: ana 20 drops 3 17 , ben 12 picks 3 15
    row          ana 20 loses 3 17 , ana 17 gains 3 20       twin: ana 20 loses 3 17 , other 12 gains 3 15
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from openrlhf_shear.tasks.arithmetic.problems import EOS
from openrlhf_shear.tasks.bookkeeping.forms import OTHER, PLAIN, Form, Template
from openrlhf_shear.tasks.bookkeeping.stories import (
    DIRECTION,
    MISCONCEPTIONS,
    MOST,
    ROW,
    StoryProblem,
    Transfer,
    state_text,
)

Q = 1 / 3  # probability of a misconception at a fork, and of its twin: all three ways are equally likely


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
class EntryCheck:
    """Comparison of a response with the truth. Indices count words, which are tokens."""

    correct: bool  # the response ends with the true balances, for which the reward pays
    first_error: int | None  # the first word that no right response has at its place; None without an error
    misconceived: bool = False  # whether that word is the misconception of its fork, rather than a slip

    @property
    def lucky(self) -> bool:
        return self.correct and self.first_error is not None


class OutOfWords(Exception):
    """Error of a wrong balance that no word of the vocabulary stands for."""


def walk(problem: StoryProblem, form: Form = PLAIN) -> Iterator[Fork]:
    """Yield the forks of a response, word by word; the caller sends each chosen word.

    After a misconception, the forks agree with it. After any other wrong word, the forks have no meaning.

    Raises OutOfWords: a wrong balance has no word.
    """
    balances = dict(problem.balances)
    for transfer in problem.transfers:
        yield from _entry(form, transfer, balances)


def _entry(form: Form, transfer: Transfer, balances: dict[str, int]) -> Iterator[Fork]:
    """Yield the forks of an entry, and change the balances as the chosen words say."""
    template, *others = form.templates
    parts = template.parts
    if others:
        word = yield Fork(tuple(each.parts[0] for each in form.templates))
        template = next((each for each in form.templates if each.parts[0] == word), template)
        parts = template.parts[1:]
    sums = _Sums(transfer, balances, template)
    for part in parts:
        if part in form.phrases:
            yield from _phrase(form.phrases[part])
        elif part == "{transfer}":
            yield from _fixed(transfer.words)
        elif part == "{balances}":
            yield from _fixed(state_text(balances).split())
        elif part.startswith("{"):
            word = yield sums.fork(part)
            sums.hear(part, word)
        else:
            yield Fork((part,))


def _phrase(phrases: Sequence[str]) -> Iterator[Fork]:
    """Yield the forks of a phrase: its first word is one of those of `phrases`, and tells the others."""
    by_first = {phrase.split()[0]: phrase.split()[1:] for phrase in phrases}
    word = yield Fork(tuple(by_first))
    yield from _fixed(by_first.get(word, ()))


def _fixed(words: Sequence[str]) -> Iterator[Fork]:
    for word in words:
        yield Fork((word,))


class _Sums:
    """The two sums of an entry, as far as they are told."""

    def __init__(self, transfer: Transfer, balances: dict[str, int], template: Template):
        self._transfer, self._balances, self._template = transfer, balances, template
        self._names = {"a": transfer.subject, "b": transfer.other}
        self._misconception = MISCONCEPTIONS.get(transfer.verb)
        self._sign, self._twin = 0, 0  # of a's change; whether a's side is a twin
        self._before: dict[str, int] = {}  # by account, once its change is booked

    def fork(self, slot: str) -> Fork:
        """Return the fork of a slot of the template."""
        account, what = slot[1], slot[2:-1]
        name = self._names.get(account)
        match what:
            case "" if account == "n":
                return Fork((str(self._transfer.amount),))
            case "":
                row = account == "b" and self._misconception == ROW
                return Fork((name, OTHER), self._names["a"]) if row else Fork((name,))
            case "0":
                return Fork((str(self._before.get(account, self._balances[name])),))
            case "1":
                return Fork((str(self._balances[name]),))
        loses, gains = self._template.loses, self._template.gains
        if account == "b":
            return Fork(((gains if self._sign < 0 else loses)[self._twin],))
        gives = self._transfer.giver == self._transfer.subject
        right, wrong = (loses, gains[0]) if gives else (gains, loses[0])
        return Fork(right, wrong) if self._misconception == DIRECTION else Fork(right[:1])

    def hear(self, slot: str, word: str) -> None:
        """Take the word that was chosen for a slot, and book a change once it is known.

        Raises OutOfWords: the new balance has no word.
        """
        if slot == "{b}" and word in self._balances:
            self._names["b"] = word
        if slot == "{as}":
            self._sign, self._twin = self._template.sides.get(word, (0, 0))
        if slot in self._template.books:
            account = slot[1]
            name = self._names[account]
            self._before[account] = self._balances[name]
            self._balances[name] += self._transfer.amount * (self._sign if account == "a" else -self._sign)
            if not 0 <= self._balances[name] <= MOST:
                raise OutOfWords


def write_entries(problem: StoryProblem, rng: random.Random, q: float = Q, form: Form = PLAIN) -> str:
    """Write a response whose forks are misconceptions and twins with probability `q` each; with q = 0 it is right."""
    while True:
        try:
            return " ".join(_drawn(problem, rng, q, form))
        except OutOfWords:
            continue


def _drawn(problem: StoryProblem, rng: random.Random, q: float, form: Form) -> list[str]:
    forks, words = walk(problem, form), []
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


def check(problem: StoryProblem, words: Sequence[str], form: Form = PLAIN) -> EntryCheck:
    """Compare the words of a response (without the end-of-text token) with the truth. No response raises.

    A right response that stops early errs at its end-of-text token; a response that continues after the end errs there.
    """
    answer = state_text(problem.states[-1]).split()
    correct = list(words[-len(answer) :]) == answer
    forks = walk(problem, form)
    fork = next(forks)
    for i, word in enumerate(words):
        if fork is None or word not in fork.right:
            return EntryCheck(correct, i, fork is not None and word == fork.misconception)
        fork = sent(forks, word)
    return EntryCheck(correct, None if fork is None else len(words))


def response_words(tokenizer, ids: torch.Tensor) -> list[str]:
    """Return the words of a response, `(T_i,)` token ids, without a final `<eos>`."""
    words = tokenizer.convert_ids_to_tokens(ids.tolist())
    return words[:-1] if words and words[-1] == EOS else words
