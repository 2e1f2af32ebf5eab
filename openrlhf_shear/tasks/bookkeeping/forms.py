"""Forms of an entry: the plain form, and the paraphrased form, which says the same in many ways.

A template is a line of words and slots. Slots of the two sums, for the accounts a and b:

    {a}     name                        {b}     name, where a misconception may be
    {a0}    balance before              {b0}    balance before
    {as}    side, e.g. `loses`, where   {bs}    the other side
            a misconception may be
    {n}     amount                      {a1}, {b1}  balance after

`{transfer}` repeats the transfer, `{balances}` lists all accounts, and every other slot is a choice among phrases that
mean nothing. Account a is the transfer's subject. In a template all of a's slots stand before b's, and {a1} and {b1}
last among them.

Each choice is drawn anew for every entry, with equal probabilities, and without regard to what is right. The first
word of a template, or of a phrase, tells which one it is.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import log

from openrlhf_shear.tasks.bookkeeping.stories import PROMPT_TOKENS, TRANSFERS

OTHER = "other"  # the benign twin of b's name
SO, AND = ("so", "then"), (",", "and")
LOSES, GAINS = ("loses", "drops"), ("gains", "picks")  # usual, twin


@dataclass(frozen=True)
class Template:
    """Wording of an entry, with its words for who loses and who gains."""

    text: str
    loses: tuple[str, str] = LOSES
    gains: tuple[str, str] = GAINS

    @cached_property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.text.split())

    @cached_property
    def books(self) -> frozenset[str]:
        """The slots from which on a change is known: the name or the side of an account, whichever is later."""
        return frozenset(max((f"{{{x}}}", f"{{{x}s}}"), key=self.parts.index) for x in "ab")

    @property
    def sides(self) -> dict[str, tuple[int, int]]:
        """Map each side word to the sign of its account's change, and to 1 for a twin, else 0."""
        return {word: (s, i) for s, pair in ((-1, self.loses), (1, self.gains)) for i, word in enumerate(pair)}


@dataclass(frozen=True)
class Form:
    """All that tells the two forms of the task apart. Entries have equal numbers of tokens."""

    name: str
    templates: tuple[Template, ...]
    phrases: Mapping[str, tuple[str, ...]]  # of a slot
    entry_tokens: int
    transfers: int  # of a problem

    @property
    def budget(self) -> int:
        """Number of tokens of a response, with the end-of-text token."""
        return self.transfers * self.entry_tokens + 1

    def story_tokens(self, accounts: int, transfers: int) -> int:
        """Return the number of tokens of a prompt and its response, with the end-of-text token."""
        return 2 * accounts + 1 + transfers * (PROMPT_TOKENS + self.entry_tokens) + 1

    @property
    def choice_nats(self) -> float:
        """Entropy in nats a token of the choices that mean nothing; forks with a misconception not counted."""
        slots = Counter(part for template in self.templates for part in template.parts)
        drawn = sum(slots[slot] * log(len(phrases)) for slot, phrases in self.phrases.items()) / len(self.templates)
        return (drawn + log(len(self.templates))) / self.entry_tokens

    @property
    def words(self) -> tuple[str, ...]:
        """The words of templates, sides and phrases, each once."""
        words = [word for template in self.templates for word in (*template.parts, *template.sides)]
        words += [word for phrases in self.phrases.values() for phrase in phrases for word in phrase.split()]
        return tuple(dict.fromkeys(word for word in words if not word.startswith("{")))


PLAIN = Form(
    "plain",
    (Template("{transfer} {so} {a} {a0} {as} {n} {a1} {and} {b} {b0} {bs} {n} {b1} : {balances}"),),
    {"{so}": SO, "{and}": AND},
    entry_tokens=32,
    transfers=TRANSFERS,
)

PARAPHRASED = Form(
    "paraphrased",
    (
        Template(
            "entry {transfer} {aside} so {a} {a0} {as} {n} {a1} , {b} {b0} {bs} {n} {b1} {aside} "
            "leaving both : {balances}"
        ),
        Template(
            "note {aside} {transfer} hence {a} {a0} {as} {n} {a1} whereas {b} {b0} {bs} {n} {b1} {aside} "
            "making it thus {balances}",
            ("sheds", "yields"),
            ("adds", "nets"),
        ),
        Template(
            "book {transfer} meaning {as} {n} {a} {a0} {a1} {aside} likewise {bs} {n} {b} {b0} {b1} {aside} "
            "accounts now read {balances}",
            ("minus", "cut"),
            ("plus", "raised"),
        ),
        Template(
            "here {transfer} {aside} counting {a} {a0} {n} {as} {a1} {aside} meanwhile {b} {b0} {n} {bs} {b1} "
            "everybody stands at {balances}",
            ("below", "lower"),
            ("above", "higher"),
        ),
        Template(
            "write {aside} {transfer} therefore {a} {a0} {n} {as} {a1} {aside} moreover {b} {b0} {n} {bs} {b1} "
            "new totals follow {balances}",
            ("less", "fewer"),
            ("more", "extra"),
        ),
        Template(
            "next {transfer} {aside} {aside} posting {a} {a0} {as} {n} {a1} opposite {b} {b0} {bs} {n} {b1} "
            "page again shows {balances}",
            ("debit", "out"),
            ("credit", "in"),
        ),
        Template(
            "look {aside} {transfer} requires {as} {n} {a} {a0} {a1} besides {bs} {n} {b} {b0} {b1} {aside} "
            "altogether they hold {balances}",
            ("deduct", "remove"),
            ("append", "insert"),
        ),
        Template(
            "line {transfer} where {a} {a0} {as} {n} {a1} {aside} correspondingly {b} {b0} {bs} {n} {b1} {aside} "
            "summing everything gives {balances}",
            ("spends", "parts"),
            ("banks", "pockets"),
        ),
    ),
    {
        "{aside}": (
            "as our clerk wrote",
            "by an evening bell",
            "under some pale moon",
            "since rain kept falling",
            "before any market closed",
            "near that old mill",
            "with little said aloud",
            "after much quiet talk",
            "over coffee and bread",
            "because winter came early",
            "though nobody else noticed",
            "despite heavy snow outside",
            "once two neighbours agreed",
            "until every coin matched",
            "during one long lunch",
            "contrary to earlier plans",
        )
    },
    entry_tokens=43,
    transfers=6,
)
FORMS = {form.name: form for form in (PLAIN, PARAPHRASED)}
