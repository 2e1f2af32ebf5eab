"""The file that OpenRLHF trains on, made from a source's rows, and a report of the dropped rows beside it."""

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tqdm import tqdm

from openrlhf_shear.data.checks import RowCheck, gold_graded, not_in, short, unique, usable
from openrlhf_shear.data.files import one_line, open_rows
from openrlhf_shear.data.sources import SOURCES, Dropped, ReadProblem, Source, messages
from openrlhf_shear.data.writing import replacing, write_text


@dataclass(frozen=True)
class Options:
    """Flags of `cli.prepare_data`. Raises ValueError: a value cannot be used; the message names the flag."""

    source: str  # one of SOURCES
    input: str | None
    split: str
    config: Sequence[str] | None
    output: Path
    overwrite: bool
    prompt_key: str | None
    label_key: str | None
    system: str | None
    max_prompt_tokens: int | None
    tokenizer: str | None
    exclude: Sequence[str] | None
    check: bool
    limit: int | None  # without a seed, reading stops there; with a seed, further problems are dropped as "over_limit"
    levels: str | None  # "3-5" or "4", for a source with levels; None for all
    seed: int | None  # shuffles the problems, which are all held in memory; None keeps the order of the rows

    def __post_init__(self):
        if self.source == "columns":
            for flag, value in (("input", self.input), ("prompt-key", self.prompt_key), ("label-key", self.label_key)):
                if not value:
                    raise ValueError(f"--{flag} is needed with --source columns: got nothing; use --{flag} and a name")
            if self.prompt_key == self.label_key:
                raise ValueError(f"--label-key must not be --prompt-key: got {self.label_key}; use the answers' column")
        if self.input and self.output.resolve() == Path(self.input).resolve():
            raise ValueError(f"--output is the --input: got {self.output}; use another file")
        if self.output.suffix != ".jsonl":
            raise ValueError(
                f"--output must end with .jsonl, by which OpenRLHF recognises it: got {self.output}; use train.jsonl"
            )
        for path in (self.output, self.report_path):
            if path.exists() and not self.overwrite:
                raise ValueError(f"{path} is there already; use --overwrite, or another --output")
        if (self.tokenizer is None) != (self.max_prompt_tokens is None):
            raise ValueError("--max-prompt-tokens and --tokenizer go together: got one of them; use both or neither")
        if self.levels is not None:
            if SOURCES[self.source].level_key is None:
                raise ValueError(f"--levels is of --source math: got {self.source}, which has none; leave it out")
            if not self.level_range:
                raise ValueError(f"--levels must be a level or two of 1 to 5: got {self.levels}; use e.g. 3-5")
        for flag, value in (("max-prompt-tokens", self.max_prompt_tokens), ("limit", self.limit)):
            if value is not None and value < 1:
                raise ValueError(f"--{flag} must be at least 1: got {value}; use e.g. 1024")

    @property
    def level_range(self) -> range | None:
        """Levels to take; empty if `levels` is no range, None for all."""
        if self.levels is None:
            return None
        bounds = re.fullmatch("([1-5])(?:-([1-5]))?", self.levels)
        return range(int(bounds[1]), int(bounds[2] or bounds[1]) + 1) if bounds else range(0)

    @property
    def report_path(self) -> Path:
        return self.output.with_name(self.output.name + ".report.json")


@dataclass
class RowReport:
    """Counts of the rows: `read` equals `kept` plus the dropped rows."""

    read: int = 0
    kept: int = 0
    kinds: Counter[str] = field(default_factory=Counter)  # of the kept problems
    dropped: dict[str, dict] = field(default_factory=dict)  # by reason: count of `rows`, first `row` (from 1), `detail`

    def drop(self, reason: str, row: int, detail: str) -> None:
        self.dropped.setdefault(reason, {"rows": 0, "row": row, "detail": detail[:300]})["rows"] += 1

    def as_json(self) -> dict:
        """Return the report as strict JSON, the most frequent reason first."""
        dropped = dict(sorted(self.dropped.items(), key=lambda item: (-item[1]["rows"], item[0])))
        return asdict(self) | {"kinds": dict(sorted(self.kinds.items())), "dropped": dropped}


class EmptyResult(Exception):
    """All rows were dropped, for the reasons in `report`."""

    def __init__(self, report: RowReport):
        super().__init__("no row is left, so nothing was written; the table says why")
        self.report = report


def write_training_file(options: Options) -> RowReport:
    """Read and check the rows, with a progress bar, and write the file and its report.

    Raises:
        EmptyResult: no row is left; nothing was written.
        ValueError: the input or an excluded file cannot be used.
    """
    preset = SOURCES[options.source]
    source = replace(
        preset,
        prompt_key=options.prompt_key or preset.prompt_key,
        label_key=options.label_key or preset.label_key,
        system=preset.system if options.system is None else options.system,
        levels=options.level_range,
    )
    name = options.input or source.hub
    data = open_rows(name, options.split, options.config or source.configs.get(name, ()))
    missing = [column for column in source.columns if not {column, column.partition(".")[0]} & set(data.columns)]
    if missing:
        raise ValueError(
            f"{name} has no column {', '.join(missing)}: got {', '.join(data.columns)}; "
            "use another --source, or --prompt-key and --label-key"
        )
    checks, report = _checks(options, source.system), RowReport()
    datasource = Path(name).name.split(".")[0] if options.source == "columns" else options.source
    options.output.parent.mkdir(parents=True, exist_ok=True)
    total = data.total if options.limit is None else None  # with a limit it is not known how many are read
    rows = tqdm(data.rows, "reading", total, disable=None, leave=False)
    with replacing(options.output) as file:
        for problem in _passing(rows, source, checks, options, report):
            row = {"prompt": messages(problem, source.system), "label": problem.label, "datasource": datasource}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        if not report.kept:
            raise EmptyResult(report)
    values = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(options).items()}
    write_text(options.report_path, json.dumps(report.as_json() | {"options": values}, indent=2))
    return report


def _passing(
    rows: Iterable[Mapping], source: Source, checks: Sequence[RowCheck], options: Options, report: RowReport
) -> Iterator[ReadProblem]:
    """Yield the problems that pass the checks; a dropped problem counts under the first check that fails."""
    problems = _problems(rows, source, report)
    if options.seed is not None:
        shuffled = list(problems)
        random.Random(options.seed).shuffle(shuffled)
        problems = iter(shuffled)
    for number, problem in problems:
        try:
            for check in checks:
                check(problem)
        except Dropped as drop:
            report.drop(drop.reason, number, drop.detail)
            continue
        yield problem
        report.kept += 1
        report.kinds[problem.kind] += 1
        if report.kept == options.limit:
            break
    if options.seed is not None:
        for number, problem in problems:
            report.drop("over_limit", number, problem.prompt)


def _problems(rows: Iterable[Mapping], source: Source, report: RowReport) -> Iterator[tuple[int, ReadProblem]]:
    for number, row in enumerate(rows, 1):
        report.read += 1
        try:
            yield number, source.problem(row)
        except Dropped as drop:
            report.drop(drop.reason, number, drop.detail)


def _checks(options: Options, system: str | None) -> list[RowCheck]:
    """Return the checks in the order in which they run."""
    checks: list[RowCheck] = [usable]
    if options.exclude:
        checks.append(not_in(options.exclude))
    if options.tokenizer is not None:
        checks.append(short(_tokenizer(options.tokenizer), options.max_prompt_tokens, system))
    if options.check:
        checks.append(gold_graded)
    return [*checks, unique()]  # last: a dropped row does not make a later one a duplicate


def _tokenizer(name: str):
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ValueError(f"--tokenizer {name} cannot be loaded: {one_line(error)}") from error
    if tokenizer.chat_template is None:
        raise ValueError(f"--tokenizer must have a chat template: {name} has none; use the tokenizer of a chat model")
    return tokenizer
