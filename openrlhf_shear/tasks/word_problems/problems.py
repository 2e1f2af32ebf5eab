"""Word problems from templates, in GSM8K's columns: `question`, and `answer` ending in `#### number`."""

import random
from dataclasses import dataclass
from pathlib import Path

from openrlhf_shear.tasks.arithmetic.problems import FRUITLESS_DRAWS, SPLITS, split_of, write_lines

NAMES = ("Ana", "Ben", "Chloe", "Dev", "Eli", "Fatima", "Grace", "Hugo", "Ines", "Jonas")
THINGS = ("apples", "books", "marbles", "stickers", "pencils", "coins", "shells", "cards")
_ASKED = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
# Two solved problems, so that a small model writes its steps as equations. Their numbers are in no template's range.
_EXAMPLES = (
    ("A crate holds 14 cups. How many cups do 3 crates hold?", "The crates hold 14 * 3 = 42 cups.\n#### 42"),
    (
        "Mia has 81 stamps. She loses 30 and then buys 19 more. How many stamps does Mia have now?",
        "After losing some, 81 - 30 = 51 remain. Then 51 + 19 = 70.\n#### 70",
    ),
)


@dataclass(frozen=True)
class WordProblem:
    """A problem of one or two steps."""

    question: str
    solution: str  # with its steps as equations
    expression: str  # of the answer, in the numbers' names: "a*b + c"
    numbers: tuple[tuple[str, int], ...]  # by name

    @property
    def answer(self) -> int:
        return int(self.solution.split(" = ")[-1].split()[0].rstrip("."))

    @property
    def prompt(self) -> str:
        """The question after two solved ones, as a chat (ChatML, which SmolLM2 and Qwen read)."""
        solved = "".join(f"{_ASKED.format(question)}{solution}<|im_end|>\n" for question, solution in _EXAMPLES)
        return solved + _ASKED.format(self.question)

    @property
    def row(self) -> dict[str, str]:
        """The problem in GSM8K's columns."""
        return {"question": self.question, "answer": f"{self.solution}\n#### {self.answer}"}


def word_problem(rng: random.Random, easy: bool = False) -> WordProblem:
    """Draw a problem of one or two steps, or of one step if `easy`; all numbers are below 1000."""
    name, friend = rng.sample(NAMES, 2)
    thing = rng.choice(THINGS)
    a, b, c = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 12)
    have, lost = rng.randint(20, 60), rng.randint(3, 15)
    problems = [
        (
            f"{name} buys {a} boxes with {b} {thing} in each box and already has {c} {thing}. "
            f"How many {thing} does {name} have in total?",
            f"The boxes hold {a} * {b} = {a * b} {thing}. With the others that is {a * b} + {c} = {a * b + c}.",
            "a*b + c",
        ),
        (
            f"{name} has {have} {thing}. {name} gives {lost} to {friend} and then finds {c} more. "
            f"How many {thing} does {name} have now?",
            f"After giving, {have} - {lost} = {have - lost} remain. Then {have - lost} + {c} = {have - lost + c}.",
            "have - lost + c",
        ),
        (
            f"A pack of {thing} costs {a} dollars. {name} buys {b} packs and {friend} buys {c} packs. "
            f"How many dollars do they spend together?",
            f"Together they buy {b} + {c} = {b + c} packs, which cost {a} * {b + c} = {a * (b + c)} dollars.",
            "a*(b + c)",
        ),
        (
            f"{name} has {have} {thing} and gets {c} more from {friend}. How many {thing} does {name} have now?",
            f"{name} has {have} + {c} = {have + c} {thing}.",
            "have + c",
        ),
        (
            f"{name} reads {a} pages every day. How many pages does {name} read in {b} days?",
            f"{name} reads {a} * {b} = {a * b} pages.",
            "a*b",
        ),
    ]
    question, solution, expression = rng.choice(problems[-2:] if easy else problems)
    numbers = {"a": a, "b": b, "c": c, "have": have, "lost": lost}
    named = tuple((name, value) for name, value in numbers.items() if name in expression)
    return WordProblem(question, solution, expression, named)


def make_problems(n: int, seed: int, split: str = "train") -> list[WordProblem]:
    """Make `n` different problems, the same for the same arguments; a question decides its split.

    Raises ValueError: `split` is unknown, or has no `n` problems.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}: got {split!r}")
    rng, fruitless = random.Random(f"{split}:{seed}"), 0
    problems: dict[str, WordProblem] = {}
    while len(problems) < n:
        if fruitless > FRUITLESS_DRAWS:
            raise ValueError(f"there are no {n} different {split} word problems; ask for fewer")
        problem = word_problem(rng)
        fruitless += 1
        if split_of(problem.question) == split and problem.question not in problems:
            problems[problem.question], fruitless = problem, 0
    return list(problems.values())


def write_word_problems(path: str | Path, n: int, seed: int = 0, easy: bool = False) -> Path:
    """Write `n` problems as jsonl; the same seed gives the same file."""
    rng = random.Random(seed)
    return write_lines(path, [word_problem(rng, easy).row for _ in range(n)])
