"""What a problem is checked for before it is trained on: a check takes a `Problem` and may raise `Dropped`."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from openrlhf_shear.data.files import DataError, open_rows
from openrlhf_shear.data.prompts import CHAT, prompt_ids
from openrlhf_shear.data.sources import Dropped, Problem, messages, prompt_text

Check = Callable[[Problem], None]
# where a benchmark's file has its problems, the first that is there
PROMPT_COLUMNS = ("problem", "question", "prompt", "question_content", "text")


def usable(problem: Problem) -> None:
    """Drops "image", a prompt that asks about a picture, and "not_utf8", half a character, which no tokenizer reads."""
    if "<image>" in problem.prompt:  # the picture is not kept
        raise Dropped("image", problem.prompt)
    try:
        (problem.prompt + problem.label).encode()
    except UnicodeEncodeError as error:
        raise Dropped("not_utf8", str(error)) from error


def unique() -> Check:
    """Drops, as "duplicate", a problem whose prompt was there before."""
    seen: set[str] = set()

    def check(problem: Problem) -> None:
        text = normalized(problem.prompt)
        if text in seen:
            raise Dropped("duplicate", problem.prompt)
        seen.add(text)

    return check


def not_in(files: Iterable[str]) -> Check:
    """Drops, as "in_excluded", a problem of these files, alone or within a longer one. DataError: a file is no use."""
    texts: dict[str, str] = {}
    for file in files:
        texts |= dict.fromkeys(_benchmark(file), file)
    long = {text: file for text, file in texts.items() if len(text) >= 80}  # shorter ones could be part of anything

    def check(problem: Problem) -> None:
        text = normalized(problem.prompt)
        file = texts.get(text) or next((file for part, file in long.items() if part in text), None)
        if file is not None:
            raise Dropped("in_excluded", f"{file}: {problem.prompt}")

    return check


def _benchmark(file: str) -> Iterator[str]:
    rows = open_rows(file)
    column = next((name for name in PROMPT_COLUMNS if name in rows.columns), None)
    if column is None:
        raise DataError(
            f"{file} must have its problems in one of {', '.join(PROMPT_COLUMNS)}: got {', '.join(rows.columns)}; "
            "rename the column"
        )
    for row in rows.rows:
        try:
            yield normalized(prompt_text(row.get(column)))
        except Dropped:
            continue


def normalized(prompt: str) -> str:
    """A prompt without what differs between copies of it: white space, letter case, dollar signs."""
    return re.sub(r"[\s$]+", "", prompt).casefold()


def short(tokenizer: Any, most: int, system: str | None) -> Check:
    """Drops, as "too_long", a prompt of more than `most` tokens, counted as OpenRLHF does with a chat template."""

    def check(problem: Problem) -> None:
        tokens = len(prompt_ids(tokenizer, CHAT.text(tokenizer, messages(problem, system))))
        if tokens > most:
            raise Dropped("too_long", f"{tokens} tokens: {problem.prompt}")

    return check


def gold_graded(problem: Problem) -> None:
    """Drops, as "gold_not_graded", a gold answer that would not be graded correct itself. JailError: no jail works."""
    from openrlhf_shear.rewards.labels import golds_of
    from openrlhf_shear.rewards.maths import grade_math

    if problem.kind != "answer":
        return  # tests have no gold; that they can be read was found out when the row was
    golds = golds_of(problem.label)  # read before (`sources.label`)
    for gold in [golds] if isinstance(golds, str) else golds:
        try:
            verdict = grade_math(rf"The answer is \boxed{{{gold}}}.", gold)
        except ValueError as error:
            raise Dropped("gold_not_graded", f"{gold}: {error}") from error
        if not verdict.correct:
            raise Dropped("gold_not_graded", f"{gold}: {verdict.reason}")
