"""The leaderboard of the credit bench: tables in a Markdown page, and an HTML page that sorts them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from openrlhf_shear.lab.alignment import VINE, prediction
from openrlhf_shear.lab.findings import points
from openrlhf_shear.lab.pictures import prediction_picture
from openrlhf_shear.lab.settings import BASELINE, SEEDS, LabSettings
from openrlhf_shear.lab.worth import EVALUATED
from openrlhf_shear.report.bootstrap import Bootstrap
from openrlhf_shear.report.estimates import Estimate, Form, Paired
from openrlhf_shear.report.figures import Picture
from openrlhf_shear.report.findings import Omission
from openrlhf_shear.report.page import render, sorting
from openrlhf_shear.report.tables import Cell, Table

BEGIN = "<!-- rows: python -m openrlhf_shear.cli.credit_bench table -->"
END = "<!-- end of rows -->"
PRINTED = (
    "<!-- printed by python -m openrlhf_shear.cli.credit_bench table -->"  # scripts/prose.py skips the table below
)
HEADER = (
    *("Rule", "Seeds", f"Over {BASELINE}", "KL of a step", "Over equal steps", "On its own curve"),
    *(f"Final over {BASELINE}", "IQM", "Improves", "Rank correlation", "Largest within 1 token", "Share"),
    *("Cost", "Rate", "Machine", "Commit"),
)
# columns of the Markdown page
SHORT = (*("Rule", "Seeds", f"Over {BASELINE}", "KL of a step"), *("Over equal steps", "Rank correlation"))
OTHER = "another version of the task: compare with nothing above"
FEW = "not all seeds of the task: judges nothing"
FORMS = {"improvement": ".2f", "correlation": ".3f", "largest": ".1%", "share": ".1%"}
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Board:
    """The rows that can be compared, best first."""

    title: str
    current: bool  # whether the task still has the version of these rows
    rows: list[dict]

    @property
    def cells(self) -> list[list[Cell]]:
        return [_cells(row) for row in self.rows]

    @property
    def table(self) -> Table:
        return Table(self.title, HEADER, self.cells, self.notes)

    @property
    def short_table(self) -> Table:
        """The rules with all seeds, and the columns of the Markdown page; the HTML page has all of them."""
        places = [HEADER.index(title) for title in SHORT]
        trained = [_cells(row) for row in self.rows if is_whole(row)]
        return Table(self.title, SHORT, [[cells[place] for place in places] for cells in trained])

    @property
    def notes(self) -> list[str]:
        measured, found, notes = [row for row in self.rows if row["ceiling"]], self.prediction, []
        if measured:
            first = measured[0]
            repeated = Estimate(**first["ceiling"]).text(".3f")
            notes.append(
                f"Of the true values, {first['exact']:.0%} are exact; the others are means of {first['continuations']} "
                f"continuations. Made again with {VINE}, the advantages have a rank correlation of {repeated} "
                "with these."
            )
        if found.value is not None:
            notes.append(
                f"Over {found.rows} rules, the rank correlation and the gain have a Spearman correlation of "
                f"{found.text('.2f')}, with its interval over rules and seeds."
            )
        return notes

    @property
    def prediction(self) -> Estimate:
        """How well the rank correlation predicts the gain, over the rules with all seeds that rank tokens at all."""
        ranking = [row for row in self._by_rule if row["differences"] and not row["rule"].endswith("/matched")]
        gains = {row["rule"]: row["differences"] for row in ranking if is_whole(row)}
        correlations = {rule: each.value for rule, each in self._correlations.items() if rule in gains}
        return prediction(correlations, gains, Bootstrap())

    @property
    def picture(self) -> Picture | Omission:
        gains = {row["rule"]: Paired(**row["difference"]) for row in self._by_rule if row["difference"]}
        drawn = prediction_picture(self._correlations, gains, self.prediction, BASELINE, self.title)
        return replace(drawn, name=f"credit_bench_{self.rows[0]['task']}")

    @property
    def _correlations(self) -> dict[str, Estimate]:
        return {row["rule"]: Estimate(**row["correlation"]) for row in self._by_rule if row["correlation"]}

    @property
    def _by_rule(self) -> list[dict]:
        """A row for each rule: that of its best rate."""
        return [*{row["rule"]: row for row in reversed(self.rows)}.values()][::-1]


def boards(rows: Iterable[Mapping], versions: Mapping[str, str]) -> list[Board]:
    """Return the rows that can be compared together; those of today's versions of the tasks come first.

    Args:
        versions: task -> `bench.task_version` of today.
    """
    groups: dict[str, list[dict]] = {}
    for row in rows:
        groups.setdefault(_title(row), []).append(dict(row))
    result = []
    for title, group in groups.items():
        first = group[0]
        current = versions.get(first["task"]) == first["version"]
        group.sort(key=_place)
        result.append(Board(title if current else f"{title}; {OTHER}", current, group))
    return sorted(result, key=lambda board: (not board.current, -len(board.rows), board.title))


def _place(row: Mapping) -> tuple[bool, float, str]:
    """Return the place in a board: by the gain, then rules without one; the baseline has a gain of 0."""
    gain = row["difference"] or {"mean": 0.0}
    return not row["difference"] and row["rule"] != BASELINE, -gain["mean"], row["rule"]


def markdown(boards: Sequence[Board], page: str) -> str:
    """Return the page with the largest board of each task between `BEGIN` and `END`.

    Raises ValueError: the page lacks these two lines.
    """
    before, begin, after = page.partition(BEGIN)
    _, end, after = after.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the tables; add the lines {BEGIN} and {END}")
    largest = {board.rows[0]["task"]: board for board in reversed(boards)}
    parts = [
        "\n\n".join([f"### {board.title}", PRINTED, board.short_table.to_markdown(), *board.notes]) + "\n"
        for board in boards
        if board is largest.get(board.rows[0]["task"])
    ]
    return before + BEGIN + "\n\n" + "\n".join(parts) + "\n" + END + after


def html(boards: Sequence[Board]) -> str:
    """Return the page that sorts the tables by a click on a column's title."""
    template, style = ((HERE / f"leaderboard.{kind}").read_text(encoding="utf-8") for kind in ("html", "css"))
    details = [list(_details(board.rows)) for board in boards]
    shown = list(zip(boards, details, strict=True))
    return render(template, style, sorting(), "Credit bench", header=HEADER, boards=shown)


def _title(row: Mapping) -> str:
    """Return all that rows must share to be compared."""
    measure = "mean of the evaluations" if row["measure"] == EVALUATED else "mean accuracy of the steps"
    default = LabSettings(task=row["task"]).of_a_run()
    own = {name: value for name, value in row["setting"].items() if default.get(name) != value and name != "task"}
    knobs = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in own.items())
    rate = f"{BASELINE} at {row['baseline_learning_rate']:g}"
    of = f"{row['task'].capitalize()}, version {row['version']}, start policy {row['start']}"
    return "; ".join(filter(None, (of, knobs, rate, measure)))


def is_whole(row: Mapping) -> bool:
    """Return whether a row has all seeds of its task."""
    return row["seeds"] == [*SEEDS[row["task"]]]


def _cells(row: Mapping) -> list[Cell]:
    machines = dict.fromkeys(run["machine"] for run in row["runs"])
    return [
        Cell(f"`{row['rule']}`{' (oracle)' if row['oracle'] else ''}"),
        Cell(_seeds(row), number=len(row["seeds"])),
        _shown(row["difference"], points),
        _shown(row["step_kl"], ".2f"),
        *(_shown(row.get(name), points) for name in ("equal_steps", "at_its_steps", "final", "iqm")),
        *(_shown(row[name], form) for name, form in FORMS.items()),
        _shown(row["cost"], ".1%"),
        _shown(row["learning_rate"], "g"),
        Cell(", ".join(machines) + ("" if row["same_kind"] else " (two kinds)")),
        Cell(str(row["commit"])),
    ]


def _seeds(row: Mapping) -> str:
    """Return the number of seeds, and which they are."""
    seeds = row["seeds"]
    if not seeds:
        return "0"
    return f"{len(seeds)} ({seeds[0]} to {seeds[-1]}){'' if is_whole(row) else f', {FEW}'}"


def _shown(entry: Mapping | float | None, form: Form) -> Cell:
    """Return the cell of a number, or of the fields of a `Paired` or an `Estimate`."""
    if not isinstance(entry, Mapping):
        return Cell("") if entry is None else Cell(format(entry, form), number=entry)
    number = Paired(**entry) if "mean" in entry else Estimate(**entry)
    return Cell(number.text(form), number="" if number.value is None else number.value)


def _details(rows: Iterable[Mapping]) -> Iterator[dict]:
    """Yield what the page shows of each row below the table: where its numbers come from."""
    for row in rows:
        runs = [_origin(run) for run in row["runs"]]
        yield {"rule": row["rule"], "row": _origin(row.get("measured") or row), "runs": runs}


def _origin(of: Mapping) -> str:
    return f"{of['commit']}, {of['machine']}: {of['command']}"
