"""The stories: accounts, and dated transfers between them. One word is one token.

    prompt    ana 20 ben 12 cleo 18 dan 19 eva 11 finn 14 . may ana lends 3 to ben . june cleo borrows 2 from eva . ...

A third of the verbs have a misconception: `entries` says what becomes of it. Other numbers of transfers are for the
warm-up, which learns from shorter stories too.
"""

import hashlib
import random
from dataclasses import dataclass

NAMES = (
    *("ana", "ben", "cleo", "dan", "eva", "finn", "gus", "hana", "ivan", "jana", "kai", "lena", "milo", "nora"),
    *("omar", "pia", "quinn", "rosa", "sam", "tara", "uma", "vito", "wanda", "xena", "yuri", "zoe"),
)
MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november"),
    "december",
)
GIVING = (
    *("lends", "hands", "mails", "returns", "awards", "refunds"),  # the first four have a misconception
    *("gives", "pays", "sends", "donates", "offers", "wires"),
)
TAKING = (
    *("borrows", "collects", "wins", "claims", "earns", "draws"),
    *("takes", "gets", "receives", "buys", "accepts", "inherits"),
)
VERBS = GIVING + TAKING
DIRECTION, ROW = "direction", "row"  # misconceptions: who gains; whose account it is
MISCONCEPTIONS = {
    verb: (DIRECTION, ROW)[i % 2] for verbs in (GIVING, TAKING) for i, verb in enumerate(verbs[: len(verbs) // 3])
}
ACCOUNTS, TRANSFERS = 6, 8
PROMPT_TOKENS = 7  # of a transfer
MOST = 30  # of a balance; the least is 0
STARTS, AMOUNTS = range(10, 21), range(1, 5)
MARGIN = 4  # true balances keep this distance from both ends, so that wrong ones have words too
SPLITS = ("train", "heldout")


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
class Problem:
    """Balances before the first transfer, in the ledger's order, and the transfers in theirs."""

    balances: tuple[tuple[str, int], ...]
    transfers: tuple[Transfer, ...]

    @property
    def prompt(self) -> str:
        stories = (f" {' '.join(transfer.words)} ." for transfer in self.transfers)
        return state_text(dict(self.balances)) + "".join(stories)

    @property
    def states(self) -> tuple[dict[str, int], ...]:
        """The true balances before and after every transfer (`len(transfers) + 1` of them)."""
        states = [dict(self.balances)]
        for one in self.transfers:
            taker = one.other if one.giver == one.subject else one.subject
            before = states[-1]
            states.append(before | {one.giver: before[one.giver] - one.amount, taker: before[taker] + one.amount})
        return tuple(states)


def state_text(balances: dict[str, int]) -> str:
    return " ".join(f"{name} {balance}" for name, balance in balances.items()) + " ."


def make_problems(n: int, seed: int, split: str = "train", transfers: int = TRANSFERS) -> list[Problem]:
    """`n` different problems, the same for the same arguments; one in 16 prompts is held out, whatever the seed.
    Raises ValueError: `split` is unknown, or the number of transfers has no months.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}: got {split!r}")
    if not 1 <= transfers <= len(MONTHS):
        raise ValueError(f"transfers must be between 1 and {len(MONTHS)}: got {transfers}; the task has {TRANSFERS}")
    rng, problems = random.Random(f"ledger:{split}:{seed}:{transfers}"), {}
    while len(problems) < n:
        problem = _problem(rng, transfers)
        room = all(MARGIN <= balance <= MOST - MARGIN for state in problem.states for balance in state.values())
        if room and _split_of(problem.prompt) == split:
            problems[problem.prompt] = problem
    return list(problems.values())


def _problem(rng: random.Random, transfers: int) -> Problem:
    names, first = rng.sample(NAMES, ACCOUNTS), rng.randrange(len(MONTHS))
    months = (MONTHS[(first + i) % len(MONTHS)] for i in range(transfers))
    return Problem(
        tuple((name, rng.choice(STARTS)) for name in names),
        tuple(_transfer(rng, month, names) for month in months),
    )


def _transfer(rng: random.Random, month: str, names: list[str]) -> Transfer:
    subject, other = rng.sample(names, 2)
    return Transfer(month, subject, rng.choice(VERBS), rng.choice(AMOUNTS), other)


def _split_of(prompt: str) -> str:
    return "heldout" if hashlib.sha256(prompt.encode()).digest()[0] < 16 else "train"
