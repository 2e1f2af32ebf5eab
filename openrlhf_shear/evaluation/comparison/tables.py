"""The paper's tables: methods x benchmarks under each backbone, one table a task, as Markdown, CSV and LaTeX; and each
score again, beside what it rests on.

Values are percent with one decimal, mean ± sample std over seeds; the best of a column is bold. A cell that rests on
fewer seeds than its row says so, and one without any is `-`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from openrlhf_shear.evaluation.basis import TITLES as RESTS_ON
from openrlhf_shear.evaluation.basis import Basis, cells, note
from openrlhf_shear.evaluation.comparison.cells import TITLES, Section, Select, choose
from openrlhf_shear.evaluation.comparison.runs import UNKNOWN, Run
from openrlhf_shear.report.estimates import Stat, stat
from openrlhf_shear.report.tables import MARKUP, Cell, Table, csv_text, latex_text

AVERAGE = "average"
BASE = "Base model"
# a method: label, seeds, and by column fractions and what they rest on, of each evaluation
Row = tuple[str, int, dict[str, Stat | None], dict[str, list[Basis]]]


@dataclass(frozen=True)
class Score(Cell):
    """A cell of a benchmark or of the average; `value` in fractions."""

    value: Stat | None = None
    bases: Sequence[Basis] = ()

    @property
    def exact(self) -> str:
        """Percent with six decimals, for sorting."""
        return "" if self.value is None else f"{100 * self.value.mean:.6f}"


@dataclass(frozen=True)
class Scores(Table):
    """One task: a section a backbone; rows of a label, a `Score` for each of `columns`, and the number of seeds."""

    task: str = ""
    columns: tuple[str, ...] = ()  # benchmarks, in the paper's order, then "average"
    models: tuple[str, ...] = ()  # the backbone of each section
    seeds: int = 0  # the most of a row


def make_scores(sections: Iterable[Section], select: Select) -> list[Scores]:
    """One table for each task that has an evaluation."""
    tasks: dict[str, list[Section]] = {}
    for section in sections:
        if any(run.evaluations for variant in section.variants for run in variant.runs):
            tasks.setdefault(section.task, []).append(section)
    return [_scores(task, of_task, select) for task, of_task in tasks.items()]


def _scores(task: str, of_task: list[Section], select: Select) -> Scores:
    runs = [run for section in of_task for variant in section.variants for run in variant.runs]
    names = {name for run in runs for evaluation in run.evaluations for name in evaluation.scores}
    order = list(TITLES)
    columns = (*sorted(names, key=lambda name: (order.index(name) if name in order else len(order), name)), AVERAGE)
    blocks = [list(_rows(section, select, columns)) for section in of_task]
    most = max(seeds for block in blocks for _, seeds, *_ in block)
    rows, sections = [], {}
    for section, block in zip(of_task, blocks, strict=True):
        sections[len(rows)] = model_title(section.model)
        best = {name: _best([values[name] for _, _, values, _ in block]) for name in columns}
        for label, seeds, values, bases in block:
            latex = latex_text(label) + ("" if seeds == most else f" ($n={seeds}$)")
            scores = (_score(values[name], seeds, best[name], bases.get(name, ())) for name in columns)
            rows.append((Cell(label, latex=latex), *scores, str(seeds)))
    titles = TITLES | {AVERAGE: "Avg"}
    header = ("Method", *(titles.get(name, name) for name in columns), "Seeds")
    shown = {"task": task, "columns": columns, "models": tuple(section.model for section in of_task), "seeds": most}
    return Scores(task_title(task), header, rows, sections=sections, **shown)


def _rows(section: Section, select: Select, columns: tuple[str, ...]) -> Iterator[Row]:
    bases: dict[int | None, Run] = {}  # the base model is the same in every method: one of its evaluations a seed
    for run in (run for variant in section.variants for run in section.averaged(variant)):
        if run.evaluations[0].step == 0:
            bases.setdefault(run.seed, run)
    if bases:
        yield _row(BASE, tuple(bases.values()), tuple(bases.values()), 0, columns)
    for label, variant in section.rows.items():
        yield _row(label, variant.runs, section.averaged(variant), select, columns)


def _row(label: str, runs: tuple[Run, ...], averaged: tuple[Run, ...], select: Select, columns: tuple) -> Row:
    chosen = [one for run in runs if (one := choose(run, select))]
    values = {name: stat(one.scores[name] for one in chosen if name in one.scores) for name in columns[:-1]}
    values[AVERAGE] = stat(one.average for run in averaged if (one := choose(run, select)))
    bases = {name: [one.bases.get(name, Basis()) for one in chosen if name in one.scores] for name in columns[:-1]}
    return label, len(runs), values, bases


def _best(values: list[Stat | None]) -> str | None:
    """The highest of a column as it shows; None without two or more."""
    shown = [_percent(value.mean) for value in values if value]
    return max(shown, key=float) if len(shown) > 1 else None


def _score(value: Stat | None, seeds: int, best: str | None, bases: Sequence[Basis]) -> Score:
    bold = value is not None and _percent(value.mean) == best
    latex = number(value, seeds, r"\textbf{{{}}}" if bold else "{}", r"\std{{{}}}")
    return Score(number(value, seeds), "bold" if bold else "", latex, value, bases)


def rests_on(scores: Scores) -> list[Table]:
    """Of each backbone a table with each score beside what it rests on; a section a benchmark."""
    tables = []
    for model, (_, block) in zip(scores.models, scores.blocks, strict=True):
        rows, sections, notes = [], {}, []
        for at, (name, title) in enumerate(zip(scores.columns, scores.header[1:], strict=False), 1):
            sections[len(rows)] = title
            for row in block:
                score = row[at]
                of = cells(name, score.bases) if score.bases else ("",) * len(RESTS_ON)
                rows.append((row[0], score, *of, row[-1]))
                notes += [f"{title}, {row[0]}: {said}" for said in [note(score.bases)] if said]
        header = ("Method", "avg@k", *RESTS_ON, "seeds")
        tables.append(Table(f"{scores.title}, {model_title(model)}", header, rows, notes, sections=sections))
    return tables


def model_title(model: str) -> str:
    """A hub id without its owner; a path as it is.

    >>> model_title("Qwen/Qwen2.5-Math-7B"), model_title("/data/policy")
    ('Qwen2.5-Math-7B', '/data/policy')
    """
    owner, slash, name = model.partition("/")
    return name if slash and owner not in ("", ".", "..") and name and "/" not in name else model


def task_title(task: str) -> str:
    known = {"math": "Mathematical reasoning", "code": "Code generation", UNKNOWN: "Unnamed task"}
    return known.get(task, task)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}"


def number(value: Stat | None, seeds: int, mean: str = "{}", spread: str = " ± {}") -> str:
    """A cell in words; `mean` and `spread` are the forms of its parts.

    >>> number(Stat(0.4916, 0.0131, 3), 3), number(Stat(0.4916, 0.0131, 2), 3), number(None, 3)
    ('49.2 ± 1.3', '49.2 ± 1.3 (n=2)', '-')
    """
    if value is None:
        return "-"
    around = "" if value.std is None else spread.format(_percent(value.std))
    return mean.format(_percent(value.mean)) + around + ("" if value.n == seeds else f" (n={value.n})")


def markdown(scores: Scores) -> str:
    tables = [scores, *map(_flat, rests_on(scores))]
    return "\n".join(table.to_markdown(MARKUP, (":--", "--:")) + "\n" for table in tables)


def _flat(table: Table) -> Table:
    """With its sections' headings as the first column."""
    rows = [(heading, *row) for heading, block in table.blocks for row in block]
    return replace(table, header=("Benchmark", *table.header), rows=rows, left=("Method",), sections={0: table.title})


def latex(scores: Scores) -> str:
    """A `table*` in the paper's form; needs booktabs and xcolor. Rows of fewer seeds say so in place of a column."""
    over = rf"mean $\pm$ sample std over {scores.seeds} seeds" if scores.seeds > 1 else "one seed"
    table = replace(scores, header=scores.header[:-1], rows=[row[:-1] for row in scores.rows])
    needs = r"% needs \usepackage{booktabs,xcolor}"
    std = r"\providecommand{\std}[1]{{\color{gray}{\scriptsize $\pm$#1}}}"
    beside = "".join(f"% {line}\n" for one in rests_on(scores) for line in _flat(one).to_markdown().splitlines())
    return f"{needs}\n{std}\n{table.to_latex(f'. Percent, {over}.')}{beside}"


def to_csv(scores: Scores) -> str:
    """One line a row; percent unrounded, empty where there is no value."""
    rows = []
    for model, (_, block) in zip(scores.models, scores.blocks, strict=True):
        for label, *of, seeds in block:
            parts = [part for score in of for part in numbers(score.value and score.value.percent)]
            parts += [part for score in of[:-1] for part in _plain(score)]
            rows.append((scores.task, model, label, seeds, *parts))
    header = [f"{name}_{part}" for name in scores.columns for part in ("mean", "std", "n")]
    header += [f"{name}_{title.replace(' ', '_')}" for name in scores.columns[:-1] for title in RESTS_ON]
    return csv_text(["task", "model", "method", "seeds", *header], rows)


def _plain(score: Score) -> list[str]:
    """What it rests on, shares in percent."""
    return [text.strip("-%") for text in cells("", score.bases)]


def numbers(value: Stat | None) -> tuple:
    """Mean, std (empty for one seed) and number of seeds, as in CSV files."""
    return ("", "", 0) if value is None else (value.mean, "" if value.std is None else value.std, value.n)
