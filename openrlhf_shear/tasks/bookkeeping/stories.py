"""Stories: accounts, and dated transfers between them. One word is one token.

    prompt    ana 20 ben 12 cleo 18 dan 19 eva 11 finn 14 . may ana lends 3 to ben . june cleo borrows 2 from eva . ...

A third of the verbs have a misconception, which `entries` describes. Other numbers of transfers are for the warm-up,
which learns from shorter stories too.
"""

import random
from dataclasses import dataclass

from openrlhf_shear.tasks.arithmetic.problems import SPLITS, split_of

NAMES = (
    *("ana", "ben", "cleo", "dan", "eva", "finn", "gus", "hana", "ivan", "jana", "kai", "lena", "milo", "nora"),
    *("omar", "pia", "quinn", "rosa", "sam", "tara", "uma", "vito", "wanda", "xena", "yuri", "zoe"),
)
MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november"),
    "december",
)
# The first four verbs of each list have a misconception.
GIVING = (
    *("lends", "hands", "mails", "returns", "awards", "refunds"),
    *("gives", "pays", "sends", "donates", "offers", "wires"),
)
TAKING = (
    *("borrows", "collects", "wins", "claims", "earns", "draws"),
    *("takes", "gets", "receives", "buys", "accepts", "inherits"),
)
VERBS = GIVING + TAKING
DIRECTION, ROW = "direction", "row"  # misconceptions: about who gains; about whose account it is
MISCONCEPTIONS = {
    verb: (DIRECTION, ROW)[i % 2] for verbs in (GIVING, TAKING) for i, verb in enumerate(verbs[: len(verbs) // 3])
}
ACCOUNTS, TRANSFERS = 6, 8
PROMPT_TOKENS = 7  # of a transfer in the prompt
MOST = 30  # the largest balance that has a word; the smallest is 0
STARTS, AMOUNTS = range(10, 21), range(1, 5)
MARGIN = 4  # distance of true balances from 0 and MOST, so that wrong balances have words too


@dataclass(frozen=True)
class Transfer:
    """`Transfer("may", "ana", "borrows", 3, "ben")`: ana gains 3."""

    month: str
    subject: str
    verb: str
    amount: int
    other: str

    @property
    def words(self) -> tuple[str, ...]:
        return (self.month, self.subject, self.verb, str(self.amount), self.preposition, self.other)

    @property
    def preposition(self) -> str:
        return "to" if self.verb in GIVING else "from"

    @property
    def giver(self) -> str:
        return self.subject if self.verb in GIVING else self.other


@dataclass(frozen=True)
class StoryProblem:
    """Balances before the first transfer, in the ledger's order, and the transfers, in the order of the story."""

    balances: tuple[tuple[str, int], ...]
    transfers: tuple[Transfer, ...]

    @property
    def prompt(self) -> str:
        stories = (f" {' '.join(transfer.words)} ." for transfer in self.transfers)
        return state_text(dict(self.balances)) + "".join(stories)

    @property
    def states(self) -> tuple[dict[str, int], ...]:
        """True balances before the first and after every transfer (`len(transfers) + 1` dicts)."""
        states = [dict(self.balances)]
        for transfer in self.transfers:
            giver, amount = transfer.giver, transfer.amount
            taker = transfer.other if giver == transfer.subject else transfer.subject
            before = states[-1]
            states.append(before | {giver: before[giver] - amount, taker: before[taker] + amount})
        return tuple(states)


def state_text(balances: dict[str, int]) -> str:
    return " ".join(f"{name} {balance}" for name, balance in balances.items()) + " ."


def make_problems(n: int, seed: int, split: str = "train", transfers: int = TRANSFERS) -> list[StoryProblem]:
    """Make `n` different problems, the same for the same arguments; one in 16 prompts is held out, for any seed.

    Raises ValueError: `split` is unknown, or there are fewer months than transfers.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}: got {split!r}")
    if not 1 <= transfers <= len(MONTHS):
        raise ValueError(f"transfers must be between 1 and {len(MONTHS)}: got {transfers}; the task has {TRANSFERS}")
    rng, problems = random.Random(f"ledger:{split}:{seed}:{transfers}"), {}
    while len(problems) < n:
        problem = _problem(rng, transfers)
        room = all(MARGIN <= balance <= MOST - MARGIN for state in problem.states for balance in state.values())
        if room and split_of(problem.prompt) == split:
            problems[problem.prompt] = problem
    return list(problems.values())


def _problem(rng: random.Random, transfers: int) -> StoryProblem:
    names, first = rng.sample(NAMES, ACCOUNTS), rng.randrange(len(MONTHS))
    months = (MONTHS[(first + i) % len(MONTHS)] for i in range(transfers))
    return StoryProblem(
        tuple((name, rng.choice(STARTS)) for name in names),
        tuple(_transfer(rng, month, names) for month in months),
    )


def _transfer(rng: random.Random, month: str, names: list[str]) -> Transfer:
    subject, other = rng.sample(names, 2)
    return Transfer(month, subject, rng.choice(VERBS), rng.choice(AMOUNTS), other)
