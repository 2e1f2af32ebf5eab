"""The simulator's view of every prefix of a response: which misconceptions were written, and can they still cancel?

A misconception shifts the final balances by a fixed amount, whatever stands before it:

    direction    the giver has 2 x amount too much, the taker as much too little
    row          the giver has the amount too much, the taker as much too little

The answer is right if all shifts sum to 0. So an error can be undone: another misconception may shift the same accounts
back. A response is wrong for good once no choice at the remaining forks sums to the opposite shift.
"""

from collections.abc import Sequence

from openrlhf_shear.tasks.bookkeeping.entries import OutOfWords, sent, walk
from openrlhf_shear.tasks.bookkeeping.forms import PLAIN, Form
from openrlhf_shear.tasks.bookkeeping.stories import DIRECTION, MISCONCEPTIONS, StoryProblem, Transfer
from openrlhf_shear.tasks.situation import LOST, Situation

Shift = tuple[int, ...]  # of each account's final balance, in the ledger's order


def situations(problem: StoryProblem, words: Sequence[str], form: Form = PLAIN) -> list[Situation]:
    """Return the situation before each word and after the last (`len(words) + 1`).

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
    taker = transfer.other if transfer.giver == transfer.subject else transfer.subject
    by = transfer.amount * (2 if MISCONCEPTIONS[transfer.verb] == DIRECTION else 1)
    return tuple(by * ((name == transfer.giver) - (name == taker)) for name in accounts)


def _sum(first: Shift, second: Shift) -> Shift:
    return tuple(a + b for a, b in zip(first, second, strict=True))
