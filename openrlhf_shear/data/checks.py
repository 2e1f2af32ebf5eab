"""Checks of problems before training on them: a check takes a `ReadProblem` and may raise `Dropped`."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from openrlhf_shear.data.files import DataError, open_rows
from openrlhf_shear.data.prompts import CHAT, prompt_ids
from openrlhf_shear.data.sources import Dropped, ReadProblem, messages

RowCheck = Callable[[ReadProblem], None]
# Columns that can hold the problems of a benchmark's file; the first existing column counts.
PROMPT_COLUMNS = ("problem", "question", "prompt", "question_content", "text")


def usable(problem: ReadProblem) -> None:
    """Drop, as "image", a prompt about a picture, and, as "not_utf8", half a character, which no tokenizer reads."""
    if "<image>" in problem.prompt:  # the training file has no pictures
        raise Dropped("image", problem.prompt)
    try:
        (problem.prompt + problem.label).encode()
    except UnicodeEncodeError as error:
        raise Dropped("not_utf8", str(error)) from error


def unique() -> RowCheck:
    """Make a check that drops, as "duplicate", a problem whose prompt it has seen before.

    Dollar signs do not count, nor white space except between words or numbers: 2 1/2 is not 21/2.
    """
    seen: set[str] = set()

    def check(problem: ReadProblem) -> None:
        text = re.sub(r"(?<!\w)\s+|\s+(?!\w)", "", " ".join(problem.prompt.replace("$", "").split()))
        if text in seen:
            raise Dropped("duplicate", problem.prompt)
        seen.add(text)

    return check


def not_in(files: Iterable[str]) -> RowCheck:
    """Make a check that drops, as "in_excluded", a problem of these files, alone or within a longer problem.

    Raises DataError: a file cannot be used.
    """
    texts: dict[str, str] = {}
    for file in files:
        texts |= dict.fromkeys(_benchmark(file), file)
    long = {text: file for text, file in texts.items() if len(text) >= 80}  # a shorter text could be part of any prompt

    def check(problem: ReadProblem) -> None:
        text = normalized(problem.prompt)
        file = texts.get(text) or next((file for part, file in long.items() if part in text), None)
        if file is not None:
            raise Dropped("in_excluded", f"{file}: {problem.prompt}")

    return check


def _benchmark(file: str) -> Iterator[str]:
    """Yield the normalized prompts of a benchmark's file."""
    rows = open_rows(file)
    if not set(PROMPT_COLUMNS) & set(rows.columns):
        raise DataError(
            f"{file} must have its problems in one of {', '.join(PROMPT_COLUMNS)}: got {', '.join(rows.columns)}; "
            "rename the column"
        )
    found = False
    for row in rows.rows:
        for text in next(filter(None, (_problem_texts(row.get(name)) for name in PROMPT_COLUMNS)), []):
            found = True
            yield normalized(text)
    if not found:
        raise DataError(f"{file} has no row with a problem in {', '.join(PROMPT_COLUMNS)}; use texts or messages there")


def _problem_texts(value: object) -> list[str]:
    """Return the texts of a problem: of a text, or of the user's turns of a chat with or without answers."""
    turns = [turn for turn in value if isinstance(turn, dict)] if isinstance(value, list) else []
    texts = [turn.get("content") for turn in turns if turn.get("role") == "user"] if turns else [value]
    return [text for text in texts if isinstance(text, str) and text.strip()]


def normalized(prompt: str) -> str:
    """Remove what differs between copies of a prompt: white space, letter case, dollar signs."""
    return re.sub(r"[\s$]+", "", prompt).casefold()


def short(tokenizer: Any, most: int, system: str | None) -> RowCheck:
    """Make a check that drops, as "too_long", a prompt of more than `most` tokens.

    It counts as OpenRLHF does with a chat template.
    """

    def check(problem: ReadProblem) -> None:
        tokens = len(prompt_ids(tokenizer, CHAT.text(tokenizer, messages(problem, system))))
        if tokens > most:
            raise Dropped("too_long", f"{tokens} tokens: {problem.prompt}")

    return check


def gold_graded(problem: ReadProblem) -> None:
    """Drop a gold answer that would not be graded correct itself, or is unlikely to be an answer alone (`doubt`).

    The reasons are "gold_not_graded" and "doubtful_...". Raises JailError: no jail works.
    """
    from openrlhf_shear.rewards.labels import doubt, golds_of
    from openrlhf_shear.rewards.maths import grade_math

    if problem.kind != "answer":
        return  # tests have no gold answer, and `sources.tests` has checked that they can be read
    golds = golds_of(problem.label)  # cannot fail: `sources.label` has read them
    for gold in [golds] if isinstance(golds, str) else golds:
        try:
            verdict = grade_math(rf"The answer is \boxed{{{gold}}}.", gold)
        except ValueError as error:
            raise Dropped("gold_not_graded", f"{gold}: {error}") from error
        if not verdict.correct:
            raise Dropped("gold_not_graded", f"{gold}: {verdict.why}")
        if kind := doubt(gold):
            raise Dropped(f"doubtful_{kind}", gold)
