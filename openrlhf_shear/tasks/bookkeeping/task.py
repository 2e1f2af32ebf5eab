"""The bookkeeping task for the lab (`lab.tasks`)."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openrlhf_shear.tasks.bookkeeping.entries import (
    EntryCheck,
    OutOfWords,
    check,
    response_words,
    sent,
    walk,
    write_entries,
)
from openrlhf_shear.tasks.bookkeeping.forms import PLAIN, Form
from openrlhf_shear.tasks.bookkeeping.stories import DIRECTION, MISCONCEPTIONS, StoryProblem, Transfer, make_problems
from openrlhf_shear.tasks.situation import LOST, Situation

Shift = tuple[int, ...]  # of each account's final balance, in the ledger's order


def situations(problem: StoryProblem, words: Sequence[str], form: Form = PLAIN) -> list[Situation]:
    """Return the situation before each word and after the last (`len(words) + 1`).

    A misconception shifts the final balances by a fixed amount, whatever stands before it. The answer is right if all
    shifts sum to 0, so another misconception can undo an error. A response is wrong for good once no choice at the
    remaining forks sums to the opposite shift.

    The key is the number of forks passed, with the shift so far: words that are not a choice at a fork with a
    misconception decide nothing. A slip, a word that no fork has, loses the thread.
    """
    accounts = [name for name, _ in problem.balances]
    shifts = [_shift(transfer, accounts) for transfer in problem.transfers if transfer.verb in MISCONCEPTIONS]
    ahead = _reachable(shifts, len(accounts))
    passed, shift = 0, (0,) * len(accounts)
    found = [_situation(ahead, passed, shift)]
    forks = walk(problem, form)
    fork = next(forks)
    for word in words:
        if fork is None or word not in (*fork.right, fork.misconception):
            break
        if fork.misconception:
            shift = _sum(shift, shifts[passed]) if word == fork.misconception else shift
            passed += 1
        found.append(_situation(ahead, passed, shift))
        try:
            fork = sent(forks, word)
        except OutOfWords:
            break
    return found + [LOST] * (len(words) + 1 - len(found))


def _situation(ahead: list[set[Shift]], passed: int, shift: Shift) -> Situation:
    undone = tuple(-by for by in shift) in ahead[passed]
    settled = len(ahead) == passed + 1 or not undone
    return Situation((passed, shift), float(undone) if settled else None)


def _reachable(shifts: list[Shift], accounts: int) -> list[set[Shift]]:
    """Return the sums of the shifts of any of the forks from each fork on, and after the last."""
    ahead: list[set[Shift]] = [{(0,) * accounts}]
    for shift in reversed(shifts):
        ahead.insert(0, ahead[0] | {_sum(shift, later) for later in ahead[0]})
    return ahead


def _shift(transfer: Transfer, accounts: list[str]) -> Shift:
    """Return the shift of a misconception: the giver has too much, the taker as much too little."""
    taker = transfer.other if transfer.giver == transfer.subject else transfer.subject
    by = transfer.amount * (2 if MISCONCEPTIONS[transfer.verb] == DIRECTION else 1)
    return tuple(by * ((name == transfer.giver) - (name == taker)) for name in accounts)


def _sum(first: Shift, second: Shift) -> Shift:
    return tuple(a + b for a, b in zip(first, second, strict=True))


_HERE = Path(__file__).parent
POLICY_DIR = _HERE / "shipped_policy"
_POLICIES = {PLAIN.name: POLICY_DIR, "paraphrased": _HERE / "paraphrased_policy"}


@dataclass(frozen=True)
class BookkeepingTask:
    """The lab's task of stories with transfers, and entries of a form."""

    form: Form = PLAIN
    long_responses = True

    @property
    def place(self) -> str:
        return "bookkeeping" if self.form == PLAIN else f"bookkeeping-{self.form.name}"

    @property
    def about(self) -> str:
        return f"{self.form.transfers} transfers" + (f", {self.form.name}" if self.form != PLAIN else "")

    @property
    def budget(self) -> int:
        return self.form.budget

    def problems(self, n: int, seed: int, split: str = "train") -> list[StoryProblem]:
        return make_problems(n, seed, split, self.form.transfers)

    def check(self, tokenizer, problem: StoryProblem, ids) -> EntryCheck:
        return check(problem, response_words(tokenizer, ids), self.form)

    def situations(self, tokenizer, problem: StoryProblem, ids) -> list[Situation]:
        return situations(problem, response_words(tokenizer, ids), self.form)

    def written(self, problem: StoryProblem, rng: random.Random) -> str:
        return " " + write_entries(problem, rng, form=self.form)

    def shipped(self) -> Path:
        """Return the folder of the shipped policy."""
        return _POLICIES[self.form.name]
