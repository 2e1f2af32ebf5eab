"""The definition of a benchmark, and its questions from a local file or from the hub."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from openrlhf_shear.data.files import DataError, near_path, one_line, open_rows
from openrlhf_shear.data.sources import Dropped, ReadProblem, messages
from openrlhf_shear.rewards.graders import GRADERS
from openrlhf_shear.sampling.records import Question

Row = Mapping[str, Any]
ID_COLUMNS = ("id", "task_id", "unique_id", "question_id")  # the first that exists, else the row's number from 1


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: where its rows are, and how a row becomes a question."""

    name: str
    title: str  # its name in tables
    hub: str | None  # id on the hub; None: the only path in `files` is read, without a data folder
    files: tuple[str, ...]  # names to try below a data folder, in order
    columns: tuple[str, ...]  # required of a row; "problem|question" is either
    task: str  # the grader: a name of `rewards.graders.GRADERS`, or a .py file with `reward_func`
    k: int  # completions of each question, by default
    prompt: Callable[[Row], str | list[dict[str, str]]]  # from a row to its user turn, or to all its turns
    label: Callable[[Row], tuple[object, str]]  # from a row to (label, kind) as in `data.sources`
    system: str | None = None  # the system turn, where `prompt` gives the user turn
    tolerance: Callable[[Row], float | None] | None = None  # from a row to the allowed distance from the gold
    keep: Callable[[Row], bool] | None = None  # whether a row is a question of the benchmark
    # configs, split: of the hub id. hub_file: its file to read, where `datasets` cannot read it
    configs: tuple[str, ...] = ()
    split: str = "test"
    hub_file: str | None = None
    size: int | None = None  # number of questions, where known
    notes: str = ""  # caveats of comparing its score with others


def load_questions(benchmark: Benchmark, data_dir: Path | None = None, limit: int | None = None) -> list[Question]:
    """Return the questions of a benchmark, in the order of its rows, with the same ids in every run.

    Args:
        data_dir: folder of local copies; None reads from the hub.
        limit: return only the first so many.

    Raises:
        DataError: the benchmark cannot be found or read, lacks a column, has an id twice, or has a row that cannot be
            asked or graded. No row is skipped: without some of its questions it would be another benchmark.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1: got {limit}; leave it out for all questions")
    where = source(benchmark, data_dir)
    if data_dir is None and benchmark.hub_file:
        opened = open_rows(_downloaded(where, benchmark.hub_file))
    else:
        opened = open_rows(where, benchmark.split, benchmark.configs)
    _check_columns(benchmark, opened.columns, where)
    first = next(opened.rows)
    key = next((name for name in ID_COLUMNS if name in first), None)
    questions: dict[str, Question] = {}
    for number, row in enumerate(chain([first], opened.rows), 1):
        at = f"row {number} of {where}"
        question = _question(benchmark, row, key, number, at)
        if question is None:
            continue
        if question.id in questions:
            raise DataError(f"{at}: {key} {question.id!r} is there twice; use a file without copies")
        questions[question.id] = question
        if len(questions) == limit:
            break
    if not questions:
        raise DataError(f"{where} has no row that {benchmark.title} asks: {benchmark.notes}")
    return list(questions.values())


def source(benchmark: Benchmark, data_dir: Path | None = None) -> str:
    """Return the file or hub id to read a benchmark from; DataError where the folder has none of its files."""
    if benchmark.hub is None:
        return benchmark.files[0]
    if data_dir is None:
        return benchmark.hub
    if there := next((data_dir / file for file in benchmark.files if (data_dir / file).is_file()), None):
        return str(there)
    raise DataError(
        f"{benchmark.title} is not in {data_dir}{near_path(str(data_dir))}: tried {', '.join(benchmark.files)}; "
        f"use a folder that has it, or none to read {benchmark.hub} on the hub"
    )


def _downloaded(hub: str, file: str) -> str:
    import huggingface_hub

    try:
        return huggingface_hub.hf_hub_download(hub, file, repo_type="dataset")
    except Exception as error:  # the hub and the network raise many kinds
        raise DataError(
            f"{file} of {hub} cannot be read on the hub ({one_line(error)}); check the connection, or use a local copy"
        ) from error


def _check_columns(benchmark: Benchmark, columns: tuple[str, ...], where: str) -> None:
    missing = [names for names in benchmark.columns if not set(names.split("|")) & set(columns)]
    if missing:
        raise DataError(
            f"{where} has no column {' and no '.join(names.replace('|', ' or ') for names in missing)}, which "
            f"{benchmark.title} needs; its columns are {', '.join(columns)}"
        )


def _question(benchmark: Benchmark, row: Row, key: str | None, number: int, at: str) -> Question | None:
    """Return the question of a row; None where the row is not asked."""
    _check_columns(benchmark, tuple(row), at)
    if key and row.get(key) is None:
        raise DataError(f"{at} has no {key}, which the rows before it have")
    try:
        if benchmark.keep and not benchmark.keep(row):
            return None
        prompt, (label, kind) = benchmark.prompt(row), benchmark.label(row)
        tolerance = benchmark.tolerance(row) if benchmark.tolerance else None
    except Dropped as drop:
        raise DataError(f"{at} cannot be used: {drop.reason}: {drop.detail[:300]}") from drop
    except (TypeError, ValueError) as error:
        raise DataError(f"{at} cannot be used: {error}") from error
    if problem := _label_problem(benchmark.task, label, kind):
        raise DataError(f"{at} cannot be used: its label {problem}")
    turns = prompt if isinstance(prompt, list) else messages(ReadProblem(prompt, label, kind), benchmark.system)
    return Question(benchmark.name, str(row[key] if key else number), turns, label, tolerance)


def _label_problem(task: str, label: object, kind: str) -> str | None:
    """Return why the task's grader cannot use a label of this kind; tests are checked where they are read."""
    grader = GRADERS.get(task)
    if grader is None:
        return None
    if grader.has_tests == (kind == "answer"):
        kinds = ("tests", "an answer") if grader.has_tests else ("an answer", "tests")
        return f"is {kinds[1]}, and the task {task} needs {kinds[0]}"
    return None if grader.has_tests else grader.label_problem(label)
