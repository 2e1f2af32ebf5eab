"""Cells of the tables: runs that differ only in the seed are grouped, and a checkpoint is selected for each.

A *variant* is a method with its settings on one backbone and task; its runs are seeds. A *section* is all variants of
one backbone and task: the block of rows under a backbone's name in the paper's tables.

Selection is the paper's: for each seed the checkpoint with the best benchmark average (ties: the earlier), every
benchmark at that checkpoint, then mean and sample std over seeds. Step 0 is the base model, not a checkpoint of the
method.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from openrlhf_shear.config import RULES, CreditSpec
from openrlhf_shear.config.names import titled
from openrlhf_shear.evaluation.comparison.runs import Evaluation, ReportError, Run, joined
from openrlhf_shear.report.estimates import Stat, stat
from openrlhf_shear.sampling.benchmarks import BENCHMARKS


@dataclass(frozen=True)
class Method:
    """A credit rule in a report; `ink` is None for a rule without a fixed colour."""

    title: str
    ink: str | None = None


# by the rule's name, in the order of the tables
METHODS = {"grpo": Method("GRPO", "gray")}
METHODS |= {rule.name: Method(rule.title, rule.ink) for rule in RULES.values() if rule.title}
OTHER_INKS = ("orange", "green", "purple", "vermilion", "brown")


def method_of(rule: str) -> Method:
    """Return the method of a rule; an unknown rule is called by its name."""
    return METHODS.get(rule) or Method(*titled([rule]))


@dataclass(frozen=True)
class Sweep:
    """The knobs that an ablation changes while everything else is held."""

    heading: str
    knobs: tuple[str, ...]


SWEEPS = {
    "distance": Sweep("Distance between spans", ("distance",)),
    "normalize": Sweep("Normalisation of the weights", ("normalize",)),
    "pool": Sweep("Pooling over the spans of a token", ("pool",)),
    "tail": Sweep("Spans at the end of a response", ("tail",)),
    "epsilon": Sweep("Entropic regularisation ε", ("epsilon", "epsilon_rel", "epsilon_spread")),
    "span": Sweep("Span length w and stride s", ("window", "stride")),
    "group": Sweep("Group size G", ("group",)),
}
LETTERS = {"group": "G", "window": "w", "stride": "s"}  # the paper's letters of knobs
PAPER = CreditSpec("shear").knobs() | {"epsilon": 4.5, "group": 8}
# benchmarks in the order of the paper's tables, with their titles there
TITLES = {name: benchmark.title for name, benchmark in BENCHMARKS.items()}
TITLES |= {"olympiadbench": "Olympiad", "livecodebench": "LiveCodeBench"}


Select = str | int  # "best", "last", or a step


def choose(run: Run, select: Select) -> Evaluation | None:
    """Return the selected evaluation of a run; None without a candidate."""
    if isinstance(select, int):
        return next((evaluation for evaluation in run.evaluations if evaluation.step == select), None)
    trained = [evaluation for evaluation in run.evaluations if evaluation.step != 0]
    if select == "last":
        return trained[-1] if trained else None
    return max(trained, key=lambda evaluation: evaluation.average, default=None)  # the first of equal averages


@dataclass(frozen=True)
class MethodVariant:
    """A method with its settings on one backbone and task, with a run for each seed."""

    method: str
    settings: dict  # "group" and the credit rule's knobs
    runs: tuple[Run, ...]

    @property
    def title(self) -> str:
        return method_of(self.method).title


@dataclass(frozen=True)
class Section:
    """All variants of one backbone and task."""

    model: str
    task: str
    variants: tuple[MethodVariant, ...]
    # the benchmarks of the compared average: those that most runs have. Runs with other benchmarks get no average
    suite: frozenset[str]
    # label -> variant, for the main table: of each method the setting that its ablations start from
    rows: dict[str, MethodVariant]

    def averaged(self, variant: MethodVariant) -> tuple[Run, ...]:
        """Return the variant's runs whose averages are over `suite`."""
        return tuple(run for run in variant.runs if run.evaluations and run.evaluations[0].scores.keys() == self.suite)

    def average(self, variant: MethodVariant, select: Select) -> Stat | None:
        chosen = (choose(run, select) for run in self.averaged(variant))
        return stat(evaluation.average for evaluation in chosen if evaluation)


def sections(runs: Iterable[Run]) -> list[Section]:
    """Group runs, in the order of their first run.

    Raises ReportError where runs of a variant share their seed, or differ in more than it.
    """
    grouped: dict[tuple[str, str], dict[tuple, list[Run]]] = {}
    for run in runs:
        key = (run.method, tuple(sorted((name, repr(value)) for name, value in _settings(run).items())))
        grouped.setdefault((run.task, run.model), {}).setdefault(key, []).append(run)
    parts = []
    for (task, model), cells in grouped.items():
        of = cells.values()
        variants = tuple(MethodVariant(same[0].method, _settings(same[0]), _checked(same)) for same in of)
        suites = Counter(frozenset(r.evaluations[0].scores) for v in variants for r in v.runs if r.evaluations)
        suite = max(suites, key=lambda names: (suites[names], len(names)), default=frozenset())
        parts.append(Section(model, task, variants, suite, _rows(variants)))
    return parts


def noted(runs: Iterable[Run]) -> list[Run]:
    """Return the runs; those trained otherwise than the first run of their backbone and task have a note about it."""
    firsts: dict[tuple[str, str], Run] = {}
    result = []
    for run in runs:
        first = firsts.setdefault((run.task, run.model), run)
        both = run.others.keys() & first.others
        for name in (name for name in ("prompts", "kl", "sampling", "max_new_tokens") if name in both):
            if run.others[name] != first.others[name]:
                note = f"{name} is {run.others[name]!r}, and {first.others[name]!r} in {first.folder}"
                run = replace(run, notes=(*run.notes, note))
        result.append(run)
    return result


def _settings(run: Run) -> dict:
    credit = {name: value for name, value in (run.credit or {}).items() if name != "max_waiting_bytes"}
    return {"group": run.group, **credit}  # memory changes no result


def _checked(runs: list[Run]) -> tuple[Run, ...]:
    runs = joined(runs)
    first, seen = runs[0], {}
    for run in runs:
        differ = sorted(name for name in run.others.keys() & first.others if run.others[name] != first.others[name])
        for name in differ[:1]:
            raise ReportError(
                f"{first.folder} and {run.folder} would share a cell of the table but differ in more than the seed: "
                f"{name} is {first.others[name]!r} and {run.others[name]!r}; report them apart"
            )
        if run.seed in seen:
            raise ReportError(
                f"{seen[run.seed].folder} and {run.folder} are both seed {run.seed} of {run.method} on {run.model}, "
                f"{run.task}; leave one out, or repeat one with another --train.seed"
            )
        seen[run.seed] = run
    return tuple(sorted(runs, key=lambda run: (run.seed is None, run.seed or 0)))


def difference(first: MethodVariant, other: MethodVariant) -> list[str]:
    """The names of the settings in which two variants differ."""
    names = {**first.settings, **other.settings}
    return [name for name in names if first.settings.get(name) != other.settings.get(name)]


def ablates(first: MethodVariant, other: MethodVariant) -> bool:
    """Return whether two variants of a method differ only in the knobs of one sweep."""
    return first is not other and any(set(difference(first, other)) <= set(sweep.knobs) for sweep in SWEEPS.values())


def _centre(variants: list[MethodVariant]) -> MethodVariant | None:
    """Return the setting that ablations start from, or None.

    It is the only one that is nearest to the paper's setting.
    """
    away = [sum(v.settings[name] != PAPER[name] for name in v.settings if name in PAPER) for v in variants]
    near = [v for v, differing in zip(variants, away, strict=True) if differing == min(away)]
    return near[0] if len(near) == 1 else None


def _rows(variants: tuple[MethodVariant, ...]) -> dict[str, MethodVariant]:
    order = list(METHODS)
    methods = sorted({v.method for v in variants}, key=lambda name: (order.index(name) if name in order else -1, name))
    rows = {}
    for method in methods:
        mine = [v for v in variants if v.method == method]
        centre = _centre(mine)
        for variant in mine:
            if centre is None or variant is centre or not ablates(centre, variant):
                rows[label(variant, [centre] if centre else mine)] = variant
    return rows


def label(variant: MethodVariant, among: list[MethodVariant]) -> str:
    """Return the method's title with the settings in which the variant differs from others: `SHEAR (w = 80)`."""
    names = dict.fromkeys(name for other in among for name in difference(variant, other))
    settings = ", ".join(f"{LETTERS.get(name, name)} = {variant.settings.get(name, '-')}" for name in names)
    return f"{variant.title} ({settings})" if settings else variant.title
