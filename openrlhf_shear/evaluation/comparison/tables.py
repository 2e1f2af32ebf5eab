"""The paper's tables: methods x benchmarks under each backbone, one table a task, as Markdown, CSV and LaTeX.

Further tables show each score beside its basis. Values are percent with one decimal, mean ± sample std over seeds; the
best of a column is bold. A cell with fewer seeds than its row says so; a cell without a value is `-`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from openrlhf_shear.evaluation.comparison.cells import TITLES, Section, Select, choose
from openrlhf_shear.evaluation.comparison.runs import REWARD, SUITE_AVERAGE, UNKNOWN, Run, held_out
from openrlhf_shear.evaluation.estimators import TITLES as RESTS_ON
from openrlhf_shear.evaluation.estimators import Basis, cells, note
from openrlhf_shear.report.estimates import Stat, stat
from openrlhf_shear.report.tables import MARKUP, Cell, Table, csv_text, latex_text
from openrlhf_shear.rewards.graders import GRADERS

AVERAGE = "average"
BASE = "Base model"
# a method's label, number of seeds, and by column its fractions and the bases of each evaluation
Row = tuple[str, int, dict[str, Stat | None], dict[str, list[Basis]]]


@dataclass(frozen=True)
class Score(Cell):
    """A cell of a benchmark or of the average; `value` is in fractions."""

    value: Stat | None = None
    bases: Sequence[Basis] = ()


@dataclass(frozen=True)
class Scores(Table):
    """The table of a task: a section a backbone. Rows are a label, a `Score` for each of `columns`, and the seeds."""

    task: str = ""
    columns: tuple[str, ...] = ()  # benchmarks, in the paper's order, then "average"
    models: tuple[str, ...] = ()  # the backbone of each section
    seeds: int = 0  # the largest number of seeds of a row


def make_scores(sections: Iterable[Section], select: Select) -> list[Scores]:
    """Return a table for each task that has an evaluation."""
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
    bases: dict[int | None, Run] = {}  # the base model is the same for every method: one of its evaluations a seed
    for run in (run for variant in section.variants for run in section.averaged(variant)):
        if run.evaluations[0].step == 0:
            bases.setdefault(run.seed, run)
    if bases:
        yield _row(BASE, tuple(bases.values()), tuple(bases.values()), 0, columns)
    for label, variant in section.rows.items():
        yield _row(label, variant.runs, section.averaged(variant), select, columns)


def _row(label: str, runs: tuple[Run, ...], averaged: tuple[Run, ...], select: Select, columns: tuple) -> Row:
    chosen = [evaluation for run in runs if (evaluation := choose(run, select))]
    scores = {name: [of for of in chosen if name in of.scores] for name in columns[:-1]}
    values = {name: stat(of.scores[name] for of in evaluations) for name, evaluations in scores.items()}
    values[AVERAGE] = stat(of.average for run in averaged if (of := choose(run, select)))
    bases = {name: [of.bases.get(name, Basis()) for of in evaluations] for name, evaluations in scores.items()}
    return label, len(runs), values, bases


def _best(values: list[Stat | None]) -> str | None:
    """Return the highest value of a column, as shown; None below two values."""
    shown = [_percent(value.mean) for value in values if value]
    return max(shown, key=float) if len(shown) > 1 else None


def _score(value: Stat | None, seeds: int, best: str | None, bases: Sequence[Basis]) -> Score:
    bold = value is not None and _percent(value.mean) == best
    latex = number(value, seeds, r"\textbf{{{}}}" if bold else "{}", r"\std{{{}}}")
    exact = "" if value is None else f"{100 * value.mean:.6f}"
    return Score(number(value, seeds), "bold" if bold else "", latex, exact, value, bases)


def rests_on(scores: Scores) -> list[Table]:
    """Return, for each backbone, a table with each score beside its basis; a section a benchmark."""
    tables = []
    for model, (_, block) in zip(scores.models, scores.blocks, strict=True):
        rows, sections, notes = [], {}, []
        for at, (name, title) in enumerate(zip(scores.columns, scores.header[1:], strict=False), 1):
            sections[len(rows)] = title
            for row in block:
                score = row[at]
                of = cells(name, score.bases) if score.bases else ("",) * len(RESTS_ON)
                rows.append((row[0], score, *of, row[-1]))
                notes += [f"{title}, {row[0]}: {line}" for line in [note(score.bases)] if line]
        header = ("Method", "avg@k", *RESTS_ON, "seeds")
        tables.append(Table(f"{scores.title}, {model_title(model)}", header, rows, notes, sections=sections))
    return tables


def model_title(model: str) -> str:
    """Return a hub id without its owner, and a path unchanged.

    >>> model_title("Qwen/Qwen2.5-Math-7B"), model_title("/data/policy")
    ('Qwen2.5-Math-7B', '/data/policy')
    """
    owner, slash, name = model.partition("/")
    return name if slash and owner not in ("", ".", "..") and name and "/" not in name else model


def task_title(task: str) -> str:
    return GRADERS[task].title if task in GRADERS else "Unnamed task" if task == UNKNOWN else task


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}"


def number(value: Stat | None, seeds: int, mean: str = "{}", spread: str = " ± {}") -> str:
    """Return a cell as text; `mean` and `spread` are the formats of its parts.

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
    """Return the table with its sections' headings as the first column."""
    rows = [(heading, *row) for heading, block in table.blocks for row in block]
    return replace(table, header=("Benchmark", *table.header), rows=rows, left=("Method",), sections={0: table.title})


def latex(scores: Scores) -> str:
    """Return a `table*` in the paper's form; needs booktabs and xcolor. A row with fewer seeds than others says so."""
    over = rf"mean $\pm$ sample std over {scores.seeds} seeds" if scores.seeds > 1 else "one seed"
    table = replace(scores, header=scores.header[:-1], rows=[row[:-1] for row in scores.rows])
    needs = r"% needs \usepackage{booktabs,xcolor}"
    std = r"\providecommand{\std}[1]{{\color{gray}{\scriptsize $\pm$#1}}}"
    return f"{needs}\n{std}\n{table.to_latex(f'. Percent, {over}.')}"


def to_csv(scores: Scores) -> str:
    """Return a CSV line for each row; percent unrounded, empty without a value."""
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
    """Return the basis of a score, shares in percent."""
    return [text.strip("-%") for text in cells("", score.bases)]


def numbers(value: Stat | None) -> tuple:
    """Return mean, std (empty for one seed) and number of seeds, as in CSV files."""
    return ("", "", 0) if value is None else (value.mean, "" if value.std is None else value.std, value.n)


STEPS = 5  # steps of a mean at the start and at the end


@dataclass(frozen=True)
class Measure:
    """A column: its title, the end of its TensorBoard tag, and how its values are written."""

    title: str
    tag: str
    scale: float
    form: str
    evaluated: bool = False  # each value is an evaluation; else each step has a value


MEASURES = (
    Measure("Reward", REWARD, 1, ".3f"),
    Measure("Benchmark average (%)", SUITE_AVERAGE, 100, ".1f", evaluated=True),
    Measure("Tokens of a response", "train/rollout/response_length_mean", 1, ".0f"),
    Measure("Mixed groups (%)", "/mixed_groups", 100, ".0f"),
    Measure("Norm of the gradient", "train/actor_grad_norm", 1, ".3g"),
)


def progress(runs: Iterable[Run]) -> Table | None:
    """Return a row for each run that was trained, with "first → last" for each measure; None without such a run."""
    trained = [run for run in runs if run.curves]
    if not trained:
        return None
    sets = {name: tag for run in trained for name, tag in held_out(run.curves).items()}
    accuracies = [
        Measure(f"Held-out accuracy, {name} (%)", sets[name], 100, ".1f", evaluated=True) for name in sorted(sets)
    ]
    measures = [MEASURES[0], *accuracies, *MEASURES[1:]]
    columns = {"Run": [run.folder for run in trained], "Steps": [len(run.curve(REWARD)) for run in trained]}
    for measure in measures:
        cells = [_ends([value for _, value in run.curve(measure.tag)], measure) for run in trained]
        columns |= {measure.title: cells} if {*cells} != {"-"} else {}
    note = (
        f"First → last: means of the first and of the last {STEPS} steps (of half the steps, if a run has fewer than "
        f"{2 * STEPS}); an accuracy and a benchmark average are those of the first and of the last evaluation."
    )
    return Table("First and last", tuple(columns), list(zip(*columns.values(), strict=True)), (note,))


def _ends(values: Sequence[float], measure: Measure) -> str:
    """Return "first → last"; a single value alone, and "-" without any.

    >>> _ends([0.25, 0.75], Measure("", "", 100, ".0f"))
    '25 → 75'
    """
    if not values:
        return "-"
    count = 1 if measure.evaluated else max(1, min(STEPS, len(values) // 2))
    ends = [fmean(values[:count]), fmean(values[-count:])][: len(values)]
    return " → ".join(format(measure.scale * end, measure.form) for end in ends)
