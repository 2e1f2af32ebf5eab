"""The built-in task: chain arithmetic with every step written out, so the first wrong token of any response is known.

A prompt is a start value and seven lettered operations, applied left to right modulo 100. The response writes each step
under its letter, in either operand order and after 0-2 random filler characters, and then the answer (`solutions`):

    prompt     37a+45bx7c-12d+08ex3f-31g+77=
    response   a37+45=82;~b7x82=74;.,c-12+74=62;d62+08=70;~e70x3=10;f-31+10=79;_g79+77=56;#56

One character is one token, so an index into the response text is also a token index. All operations are one-to-one
modulo 100: a wrong value stays wrong unless a later step errs again. Studies that hold the `ChainProblem` itself can
use other numbers of operations. `parse_problem`, and so the reward, reads prompts of seven operations only.
"""

import hashlib
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

LETTERS = "abcdefghijkl"
STEPS = 7
MODULUS = 100
MULTIPLIERS = (3, 7, 9)
FILLERS = "~.,_"
ALPHABET = "0123456789+-x=;#" + FILLERS + LETTERS[:STEPS]
SPLITS = ("train", "heldout")
PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"  # tokens of the task's policies
POLICY_DIR = Path(__file__).parent / "shipped_policy"

_OPERATION = re.compile(r"([+-])([0-9]{2})|(x)([379])")
_CHAIN = "".join(rf"{letter}(?:[+-][0-9]{{2}}|x[379])" for letter in LETTERS[:STEPS])
_PROMPT = re.compile(f"([0-9]{{2}})({_CHAIN})=")
FEWEST_OPERATIONS = 2  # a single operation has too few problems, 20,100


@dataclass(frozen=True)
class ChainProblem:
    """A start value and up to twelve operations on it: `ChainProblem(37, (("+", 45), ("x", 7)))` asks 37a+45bx7=."""

    start: int
    operations: tuple[tuple[str, int], ...]

    @property
    def prompt(self) -> str:
        lettered = zip(LETTERS, self.operations, strict=False)
        return f"{self.start:02d}" + "".join(letter + sign + operand(sign, b) for letter, (sign, b) in lettered) + "="

    @property
    def values(self) -> tuple[int, ...]:
        """Running values: the start, then the result of every step (`len(operations) + 1` numbers)."""
        values = [self.start]
        for sign, b in self.operations:
            a = values[-1]
            values.append((a + b if sign == "+" else a - b if sign == "-" else a * b) % MODULUS)
        return tuple(values)

    @property
    def answer(self) -> str:
        return f"{self.values[-1]:02d}"


def operand(sign: str, b: int) -> str:
    return str(b) if sign == "x" else f"{b:02d}"


def alphabet(operations: int = STEPS) -> str:
    """Return the characters of prompts and responses of at most `operations`, letters last."""
    return ALPHABET[:-STEPS] + LETTERS[:operations]


def make_problems(n: int, seed: int, split: str = "train", operations: int = STEPS) -> list[ChainProblem]:
    """Make `n` different problems with `operations`, the same for the same arguments.

    The prompt decides the split of a problem (one in 16 is held out), so "train" and "heldout" never share a problem,
    for any seeds.

    Raises ValueError: `split` is unknown.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}: got {split!r}")
    rng = random.Random(f"{split}:{seed}")
    problems: dict[str, ChainProblem] = {}
    while len(problems) < n:
        signs = [rng.choice("+-x") for _ in range(operations)]
        chain = tuple((s, rng.choice(MULTIPLIERS) if s == "x" else rng.randrange(1, MODULUS)) for s in signs)
        problem = ChainProblem(rng.randrange(MODULUS), chain)
        if split_of(problem.prompt) == split:
            problems[problem.prompt] = problem
    return list(problems.values())


def split_of(prompt: str) -> str:
    """Return the split to which a prompt belongs, from a digest of its text."""
    return "heldout" if hashlib.sha256(prompt.encode()).digest()[0] < 16 else "train"


def parse_problem(text: str) -> ChainProblem:
    """Return the last problem in `text`, which may also hold a chat template or an instruction.

    Raises ValueError: `text` holds no problem of this task.
    """
    prompts = list(_PROMPT.finditer(text))
    if not prompts:
        raise ValueError(
            f"no arithmetic problem in the prompt {text[:80]!r}; expected a start value and {STEPS} operations such as "
            f"37a+45bx7c-12d+08ex3f-31g+77= (data for this task: `python -m openrlhf_shear.cli.make_arithmetic`)"
        )
    start, chain = prompts[-1].groups()
    operations = tuple((m[1] or m[3], int(m[2] or m[4])) for m in _OPERATION.finditer(chain))
    return ChainProblem(int(start), operations)


def write_dataset(path: str | Path, n: int, seed: int, split: str = "train") -> Path:
    """Write `n` problems as JSON lines `{"prompt": ..., "answer": ..., "datasource": "arithmetic"}`."""
    problems = make_problems(n, seed, split)
    return write_lines(path, [{"prompt": p.prompt, "answer": p.answer, "datasource": "arithmetic"} for p in problems])


def write_lines(path: str | Path, rows: list[dict]) -> Path:
    """Write rows as JSON lines, and make the file's folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
