"""Which pictures the findings can carry: the paper's kinds, each with its numbers, and why others are missing.

Each function takes an analysis, and the backbone and task that headings name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from matplotlib.axes import Axes

from openrlhf_shear.diagnosis import figures
from openrlhf_shear.report.bootstrap import Analysis
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.figures import Picture, columns, spread
from openrlhf_shear.report.findings import Omission
from openrlhf_shear.report.plots import Series, line, plot_series, whiskers

INTERVALS = "95% bootstrap intervals over problems"


def trend_pictures(trend: Analysis, place: str) -> Iterator[Picture | Omission]:
    for (outcome, curve), of in zip(trend.items(), ("all", "originally correct", "originally incorrect"), strict=True):
        name = "trend" if outcome == "every" else f"trend_{outcome}"
        heading, reach = f"Aggregate trend, {of} rollouts", _problems(curve.reach)
        if len(curve.positions) < 2:
            yield Omission(heading, f"no two positions are reached by {reach}", name)
            continue
        left_out = f"; {curve.left_out} that fewer problems reach are left out" if curve.left_out else ""
        numbers = spread("accuracy", curve.accuracy) | spread("distance", curve.distance) | _counts(curve.accuracy)
        yield Picture(
            *(name, heading, f"{place}; {_rho(curve.rho)}"),
            f"Mean continuation accuracy (left) and distance (right) of prefixes by position, with {INTERVALS}. "
            f"{_rho(curve.rho)} over {len(curve.positions)} positions that at least {reach} reach"
            f"{left_out}; {_rests(curve.rho)}. Deep positions are reached by long rollouts only.",
            *columns({"position": curve.positions, **numbers}),
            partial(figures.plot_trend, curve=curve),
        )


def changes_picture(changes: Analysis, place: str) -> Picture | Omission:
    heading, rho = "Local association of stride-wise changes", changes.rho
    if changes.table.empty:
        reason = f"no neighbouring prefixes differ by {changes.threshold:.4g} in accuracy"
        return Omission(heading, reason, "changes")
    levels, means = [one.change for one in changes.levels], [one.distance for one in changes.levels]
    return Picture(
        *("changes", heading, f"{place}; {_rho(rho)}"),
        f"Changes from one prefix of a rollout to the next, where |dAcc| is at least {changes.threshold:.4g} "
        f"({rho.rows:,} of {changes.strides:,} strides): how many have which change (logarithmic), and the mean change "
        f"of distance by change of accuracy, with {INTERVALS}. {_rho(rho)}; {_rests(rho, 'changes')}.",
        *columns({"change of accuracy": levels, **spread("change of distance", means), **_counts(means, "events")}),
        partial(figures.plot_changes, changes=changes),
    )


def separation_pictures(separation: Analysis, place: str) -> Iterator[Picture | Omission]:
    dots = "accuracy", "Accuracy by distance and outcome"
    aucs = "auc", "Separability by distance"
    shares = "densities", "Accuracies by bin of distance"
    bins, correct, incorrect = separation.bins, separation.spans_correct, separation.spans_incorrect
    if not bins:
        yield from (Omission(heading, "there is no prefix", name) for name, heading in (dots, aucs, shares))
        return
    of = f"{correct.value:,} prefixes of originally correct rollouts, {incorrect.value:,} of originally incorrect ones"
    of += f"; {len(bins)} bins of distance with about as many prefixes each"
    places, means = _places(bins), [b.distance for b in bins]
    by_outcome = spread("correct", [b.accuracy_correct for b in bins])
    by_outcome |= spread("incorrect", [b.accuracy_incorrect for b in bins])
    yield Picture(
        *(*dots, place),
        f"Each dot a prefix, moved a little up or down; lines are means by bin, with {INTERVALS}. {of}.",
        *columns({**places, **by_outcome, "prefixes": [mean.rows for mean in means]}),
        partial(figures.plot_accuracy, separation=separation),
    )
    kinds = ("auc", "All pairs", "AUC"), ("auc_position", "Pairs at the same position", "AUC at the same position")
    kinds += (("auc_problem", "Pairs of the same problem and position", "AUC of the same problem and position"),)
    series = [
        Series(title, label, ink, [b[name] for b in bins])
        for (name, label, title), ink in zip(kinds, ("blue", "orange", "purple"), strict=True)
    ]
    labels = {"xlabel": figures.DISTANCE, "ylabel": "AUC, correct against incorrect"}
    numbers = {title: column for one in series for title, column in one.columns.items()}
    yield Picture(
        *(*aucs, place),
        "How well continuation accuracy tells prefixes of originally correct rollouts from those of incorrect ones "
        "(0.5 is chance) by bin of distance: over all pairs, those at the same position, and those of one problem at "
        f"the same position, with {INTERVALS}. {of}.",
        *columns({**places, **numbers, **_counts([b.auc for b in bins], "prefixes")}),
        partial(
            plot_series,
            x=places["mean distance"],
            series=series,
            draw=whiskers,
            at=partial(Axes.axhline, y=0.5),
            **labels,
        ),
    )
    levels = separation.levels
    densities = spread("correct", [share for b in bins for share in b.density_correct])
    densities |= spread("incorrect", [share for b in bins for share in b.density_incorrect])
    yield Picture(
        *(*shares, place),
        f"The share of each outcome's prefixes at each accuracy, a panel a bin, with {INTERVALS}. {of}.",
        *columns({**_places([b for b in bins for _ in levels]), "accuracy": levels * len(bins), **densities}),
        partial(figures.plot_densities, separation=separation),
        height=3.1 if len(bins) <= figures.COLUMNS else 4.4,
    )


def positions_picture(control: Analysis, place: str) -> Picture | Omission:
    heading = "Accuracy by distance within groups of positions"
    if not control.groups:
        return Omission(heading, "there is no prefix", "positions")
    cells = [(group, *means) for group in control.groups for means in zip(group.distance, group.accuracy, strict=True)]
    accuracy = [mean for _, _, mean in cells]
    numbers = {
        "from": [group.first for group, _, _ in cells],
        "to": [group.last for group, _, _ in cells],
        "mean distance": [mean.value for _, mean, _ in cells],
    }
    return Picture(
        *("positions", heading, f"{place}; at fixed position {_rho(control.rho_fixed)}"),
        f"Mean accuracy by quantile of distance, a line a group of prefix positions, with {INTERVALS}. Over all "
        f"prefixes {_rho(control.rho)}; of ranks within single positions {_rho(control.rho_fixed)}; "
        f"{_rests(control.rho)}.",
        *columns({**numbers, **spread("accuracy", accuracy), **_counts(accuracy, "prefixes")}),
        partial(figures.plot_positions, groups=control.groups),
    )


def groups_picture(groups: Analysis, place: str) -> Picture | Omission:
    heading, levels = "Accuracies of groups", groups.levels
    if not groups.retained.rows:
        return Omission(heading, "there is no graded rollout", "groups")
    numbers = {
        "accuracy": [one.accuracy for one in levels],
        "groups": [one.groups for one in levels],
        **spread("share", [one.share for one in levels]),
        "share of retained": spread("", [one.retained_share for one in levels])[""],
    }
    kept = f"{groups.retained.value:.1%} of {_problems(groups.retained.problems)} retained"
    return Picture(
        *("groups", heading, f"{place}; {kept}"),
        f"How many of a problem's {groups.samples} rollouts are correct, with {INTERVALS}. {kept}: groups with correct "
        "and incorrect rollouts.",
        *columns(numbers),
        partial(figures.plot_groups, groups=groups),
    )


def profile_picture(errors: Analysis | None, place: str) -> Picture | Omission:
    heading = "Omega around the first error"
    if errors is None or not errors.rollouts:
        reason = "no incorrect rollout of a mixed group has a first error that is known"
        return Omission(heading, reason, "first_error")
    omega, control = ([one[name] for one in errors.profile] for name in ("omega", "control"))
    wrong = Series("omega", "Incorrect rollouts", "vermilion", omega)
    right = Series("correct rollouts", "The group's correct rollouts, same tokens", "blue", control)
    x = [one.offset for one in errors.profile]
    labels = {"xlabel": "Tokens from the first error", "ylabel": "Mean omega"}
    return Picture(
        *("first_error", heading, place),
        f"Mean omega by distance to the first wrong token of {errors.rollouts:,} incorrect rollouts of "
        f"{_problems(errors.auc.problems)}, and of the correct rollouts of their groups at the same tokens, with "
        f"{INTERVALS}. A token's omega is of all spans that cover it, so it rises before the error; the distance is "
        "symmetric, so correct rollouts rise too.",
        *columns({"offset": x, **wrong.columns, **right.columns, **_counts(omega, "rollouts")}),
        partial(plot_series, x=x, series=(wrong, right), draw=line, at=Axes.axvline, **labels),
    )


def _problems(number: int) -> str:
    return "one problem" if number == 1 else f"{number:,} problems"


def _rests(estimate: Estimate, rows: str = "prefixes") -> str:
    return f"{estimate.rows:,} {rows} of {_problems(estimate.problems)}"


def _rho(rho: Estimate) -> str:
    return "rho not defined" if rho.value is None else f"rho {rho.text('.2f')}"


def _counts(estimates: Sequence[Estimate], rows: str = "rows") -> dict[str, list[int]]:
    """Columns of what the estimates rest on."""
    return {"problems": [one.problems for one in estimates], rows: [one.rows for one in estimates]}


def _places(bins: Sequence[Analysis]) -> dict[str, list[float]]:
    """Columns of where bins are."""
    ends = {"from": [b.low for b in bins], "to": [b.high for b in bins]}
    return ends | {"mean distance": [b.distance.value for b in bins]}
