"""The files of an evaluation's output folder.

- settings.json: the request; a resume must have the same
- questions.jsonl: every question, in order; regrading needs no benchmark files
- samples.jsonl: completions in the order of sampling, appended while sampling; a resume starts from it
- generations.jsonl: every completion with its verdict, in the order of the questions; written once, at the end

A process that is killed loses at most the line that it was writing. Such a line has no newline; it is ignored and cut.
"""

import fcntl
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from openrlhf_shear.data.writing import write_text
from openrlhf_shear.sampling.records import Completion, Question

logger = logging.getLogger(__name__)

Key = tuple[str, str, int]  # benchmark, question, sample
_ABSENT = "nothing"
_SAMPLED = ("samples.jsonl", "generations.jsonl")


class Store:
    """An output folder: `start` it, `log` completions that are not in `samples`, finally `write_generations`.

    Do the first two while `alone`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Make the folder, and hold its lock.

        Raises ValueError where another process holds it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / ".lock", "w") as lock:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:
                raise ValueError(f"another process samples into {self.folder}; wait for it, or end it") from error
            except OSError as error:
                logger.warning("%s cannot be locked (%s): let one process at a time sample into it", lock.name, error)
            yield

    def start(self, settings: Mapping[str, object], questions: Iterable[Question]) -> None:
        """Make the folder, or check that its run may continue.

        Args:
            settings: JSON values by name: model, benchmarks, k, seed, temperature, ... (no dates, no number of GPUs).

        Raises:
            ValueError: the folder's run had other settings or questions; the message names them.
        """
        rows = [asdict(question) for question in questions]
        settings = json.loads(json.dumps(dict(settings)))
        sampled = any((path := self.folder / name).exists() and path.stat().st_size for name in _SAMPLED)
        if sampled and (self.folder / "settings.json").exists():
            return self._check(settings, rows)
        if sampled:
            raise ValueError(f"{self.folder} holds completions but no settings.json; use another --output")
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / "questions.jsonl", _lines(rows))
        write_text(self.folder / "settings.json", json.dumps(settings, indent=1) + "\n")

    def settings(self) -> dict:
        return json.loads((self.folder / "settings.json").read_text())

    @property
    def graded_by(self) -> dict | None:
        """The `grading.basis_of_verdicts` of generations.jsonl; None if it is not known."""
        file = self.folder / "grading.json"
        return json.loads(file.read_text()) if file.is_file() else None

    def note_grading(self, settings: Mapping[str, object]) -> None:
        write_text(self.folder / "grading.json", json.dumps(dict(settings), indent=1) + "\n")

    def questions(self) -> dict[tuple[str, str], Question]:
        """(benchmark, id) -> question, in order."""
        questions = [Question(**row) for row in _read(self.folder / "questions.jsonl")]
        return {(question.benchmark, question.id): question for question in questions}

    def samples(self) -> list[Completion]:
        """Return the sampled completions, in the order of sampling, each key once (`latest`)."""
        return latest(map(Completion.from_json, _read(self.folder / "samples.jsonl")))

    @contextmanager
    def log(self) -> Iterator[Callable[[Completion], None]]:
        """Yield a function that appends a completion to samples.jsonl, flushed to the operating system."""
        path = self.folder / "samples.jsonl"
        with open(path, "ab") as file:
            file.truncate(_whole(path.read_bytes()))

            def append(completion: Completion) -> None:
                file.write(_lines([completion.to_json()]).encode())
                file.flush()

            yield append

    def write_generations(self, completions: Iterable[Completion]) -> list[Completion]:
        """Write generations.jsonl; return its completions by benchmark, question (as in questions.jsonl), sample."""
        place = {key: at for at, key in enumerate(self.questions())}
        benchmarks = list(dict.fromkeys(benchmark for benchmark, _ in place))

        def order(completion: Completion) -> tuple[int, int, int]:
            key = completion.benchmark, completion.question
            return benchmarks.index(completion.benchmark), place[key], completion.sample

        completions = sorted(completions, key=order)
        write_text(self.folder / "generations.jsonl", _lines(completion.to_json() for completion in completions))
        return completions

    def generations(self) -> list[Completion]:
        """Return the completions of `write_generations`."""
        return [Completion.from_json(row) for row in _read(self.folder / "generations.jsonl")]

    def _check(self, settings: dict, rows: list[dict]) -> None:
        before, differing = self.settings(), []
        for name in sorted(before.keys() | settings.keys()):
            was, now = before.get(name, _ABSENT), settings.get(name, _ABSENT)
            if was != now:
                shown = (value if value is _ABSENT else repr(value)[:80] for value in (was, now))
                differing.append("{} was {} and is {}".format(name, *shown))
        if not differing and (self.folder / "questions.jsonl").read_text() != _lines(rows):  # as text: NaN is not NaN
            why = "did the benchmarks' files change, or the grading of the rollouts that are continued?"
            differing = [f"questions.jsonl holds other questions: {why}"]
        if differing:
            raise ValueError(
                f"{self.folder} holds another evaluation: {'; '.join(differing)}. "
                "Use another --output, or delete this folder to start anew"
            )


def latest(completions: Iterable[Completion]) -> list[Completion]:
    """Return one completion for each key: the first that did not fail, else the last."""
    by_key: dict[Key, Completion] = {}
    for completion in completions:
        if completion.key not in by_key or by_key[completion.key].failed:
            by_key[completion.key] = completion
    return list(by_key.values())


def _lines(rows: Iterable[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _whole(text: bytes) -> int:
    """Return the length up to the last newline."""
    return text.rfind(b"\n") + 1


def _read(path: Path) -> Iterator[dict]:
    """Yield the rows of a file of JSON lines; none if the file is missing."""
    text = path.read_bytes() if path.exists() else b""
    for number, line in enumerate(text[: _whole(text)].split(b"\n")[:-1], 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path} is damaged in line {number}: {error}; delete that line to go on") from error
