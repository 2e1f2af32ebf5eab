"""Which pictures the findings can carry: the paper's kinds, each with its numbers, and why others are missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from openrlhf_shear.diagnosis import figures
from openrlhf_shear.diagnosis.analyses.changes import Changes
from openrlhf_shear.diagnosis.analyses.groups import Groups
from openrlhf_shear.diagnosis.analyses.positions import PositionControl
from openrlhf_shear.diagnosis.analyses.separation import Bin, Separation
from openrlhf_shear.diagnosis.analyses.trend import Trend
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.figures import Picture, columns, spread
from openrlhf_shear.report.findings import Omission
from openrlhf_shear.report.plots import Series, line, plot_series, whiskers
from openrlhf_shear.rollouts.localisation import FirstErrors

INTERVALS = "95% bootstrap intervals over problems"


def trend_pictures(trend: Trend, place: str) -> Iterator[Picture | Omission]:
    for curve, of, name in (
        (trend.every, "all rollouts", "trend"),
        (trend.correct, "originally correct rollouts", "trend_correct"),
        (trend.incorrect, "originally incorrect rollouts", "trend_incorrect"),
    ):
        heading = f"Aggregate trend, {of}"
        if len(curve.positions) < 2:
            yield Omission(heading, f"no two positions are reached by {_problems(curve.reach)}")
            continue
        left_out = f"; {curve.left_out} that fewer problems reach are left out" if curve.left_out else ""
        numbers = spread("accuracy", curve.accuracy) | spread("distance", curve.distance) | _counts(curve.accuracy)
        yield Picture(
            name,
            heading,
            f"{place}; {_rho(curve.rho)}",
            f"Mean continuation accuracy (left) and distance (right) of prefixes by position, with {INTERVALS}. "
            f"{_rho(curve.rho)} over {len(curve.positions)} positions that at least {_problems(curve.reach)} reach"
            f"{left_out}; {_rests(curve.rho)}. Deep positions are reached by long rollouts only.",
            *columns({"position": curve.positions, **numbers}),
            partial(figures.plot_trend, curve=curve),
        )


def changes_picture(changes: Changes, place: str) -> Picture | Omission:
    heading = "Local association of stride-wise changes"
    if changes.events.empty:
        return Omission(heading, f"no neighbouring prefixes differ by {changes.threshold:.4g} in accuracy")
    levels, means = [one.change for one in changes.levels], [one.distance for one in changes.levels]
    return Picture(
        "changes",
        heading,
        f"{place}; {_rho(changes.rho)}",
        f"Changes from one prefix of a rollout to the next, where |dAcc| is at least {changes.threshold:.4g} "
        f"({changes.rho.rows:,} of {changes.strides:,} strides): how many have which change (logarithmic), and "
        f"the mean change of distance by change of accuracy, with {INTERVALS}. {_rho(changes.rho)}; "
        f"{_rests(changes.rho, 'changes')}.",
        *columns({"change of accuracy": levels, **spread("change of distance", means), **_counts(means, "events")}),
        partial(figures.plot_changes, changes=changes),
    )


def separation_pictures(separation: Separation, place: str) -> Iterator[Picture | Omission]:
    headings = ("Accuracy by distance and outcome", "Separability by distance", "Accuracies by bin of distance")
    bins, correct, incorrect = separation.bins, separation.spans_correct, separation.spans_incorrect
    if not bins:
        yield from (Omission(heading, "there is no prefix") for heading in headings)
        return
    of = f"{correct.value:,} prefixes of originally correct rollouts, {incorrect.value:,} of originally incorrect ones"
    of += f"; {len(bins)} bins of distance with about as many prefixes each"
    accuracies = spread("correct", [b.accuracy_correct for b in bins])
    accuracies |= spread("incorrect", [b.accuracy_incorrect for b in bins])
    yield Picture(
        "accuracy",
        headings[0],
        place,
        f"Each dot a prefix, moved a little up or down; lines are means by bin, with {INTERVALS}. {of}.",
        *columns({**_places(bins), **accuracies, "prefixes": [b.distance.rows for b in bins]}),
        partial(figures.plot_accuracy, separation=separation),
    )
    aucs = [
        Series("AUC", "All pairs", "blue", [b.auc for b in bins]),
        Series("AUC at the same position", "Pairs at the same position", "orange", [b.auc_position for b in bins]),
        Series(
            "AUC of the same problem and position",
            "Pairs of the same problem and position",
            "purple",
            [b.auc_problem for b in bins],
        ),
    ]
    labels = {"xlabel": figures.DISTANCE, "ylabel": "AUC, correct against incorrect"}
    places, counts = _places(bins), _counts([b.auc for b in bins], "prefixes")
    yield Picture(
        "auc",
        headings[1],
        place,
        "How well continuation accuracy tells prefixes of originally correct rollouts from those of incorrect ones "
        "(0.5 is chance) by bin of distance: over all pairs, those at the same position, and those of one problem at "
        f"the same position, with {INTERVALS}. {of}.",
        *columns(places | aucs[0].columns | aucs[1].columns | aucs[2].columns | counts),
        partial(plot_series, x=places["mean distance"], series=aucs, draw=whiskers, across=0.5, **labels),
    )
    levels = separation.levels
    shares = spread("correct", [share for b in bins for share in b.density_correct])
    shares |= spread("incorrect", [share for b in bins for share in b.density_incorrect])
    places = _places([b for b in bins for _ in levels])
    yield Picture(
        "densities",
        headings[2],
        place,
        f"The share of each outcome's prefixes at each accuracy, a panel a bin, with {INTERVALS}. {of}.",
        *columns({**places, "accuracy": levels * len(bins), **shares}),
        partial(figures.plot_densities, separation=separation),
        height=3.1 if len(bins) <= figures.COLUMNS else 4.4,
    )


def positions_picture(control: PositionControl, place: str) -> Picture | Omission:
    heading = "Accuracy by distance within groups of positions"
    if not control.groups:
        return Omission(heading, "there is no prefix")
    groups = [group for group in control.groups for _ in group.distance]  # of each quantile
    numbers = {
        "from": [group.first for group in groups],
        "to": [group.last for group in groups],
        "mean distance": [one.value for group in control.groups for one in group.distance],
    }
    accuracy = [one for group in control.groups for one in group.accuracy]
    return Picture(
        "positions",
        heading,
        f"{place}; at fixed position {_rho(control.rho_fixed)}",
        f"Mean accuracy by quantile of distance, a line a group of prefix positions, with {INTERVALS}. Over all "
        f"prefixes {_rho(control.rho)}; of ranks within single positions {_rho(control.rho_fixed)}; "
        f"{_rests(control.rho)}.",
        *columns({**numbers, **spread("accuracy", accuracy), **_counts(accuracy, "prefixes")}),
        partial(figures.plot_positions, groups=control.groups),
    )


def groups_picture(groups: Groups, place: str) -> Picture | Omission:
    heading, levels = "Accuracies of groups", groups.levels
    if not groups.retained.rows:
        return Omission(heading, "there is no graded rollout")
    numbers = {
        "accuracy": [one.accuracy for one in levels],
        "groups": [one.groups for one in levels],
        **spread("share", [one.share for one in levels]),
        "share of retained": ["" if one.retained_share is None else one.retained_share.value for one in levels],
    }
    kept = f"{groups.retained.value:.1%} of {_problems(groups.retained.problems)} retained"
    return Picture(
        "groups",
        heading,
        f"{place}; {kept}",
        f"How many of a problem's {groups.samples} rollouts are correct, with {INTERVALS}. {kept}: groups with correct "
        "and incorrect rollouts.",
        *columns(numbers),
        partial(figures.plot_groups, groups=groups),
    )


def profile_picture(errors: FirstErrors | None, place: str) -> Picture | Omission:
    heading = "Omega around the first error"
    if errors is None or not errors.rollouts:
        return Omission(heading, "no incorrect rollout of a mixed group has a first error that is known")
    omega = [one.omega for one in errors.profile]
    wrong = Series("omega", "Incorrect rollouts", "vermilion", omega)
    control = [one.control for one in errors.profile]
    right = Series("correct rollouts", "The group's correct rollouts, same tokens", "blue", control)
    x = [one.offset for one in errors.profile]
    labels = {"xlabel": "Tokens from the first error", "ylabel": "Mean omega"}
    return Picture(
        "first_error",
        heading,
        place,
        f"Mean omega by distance to the first wrong token of {errors.rollouts:,} incorrect rollouts of "
        f"{_problems(errors.auc.problems)}, and of the correct rollouts of their groups at the same tokens, with "
        f"{INTERVALS}. A token's omega is of all spans that cover it, so it rises before the error; the distance is "
        "symmetric, so correct rollouts rise too.",
        *columns({"offset": x, **wrong.columns, **right.columns, **_counts(omega, "rollouts")}),
        partial(plot_series, x=x, series=(wrong, right), draw=line, down=0, **labels),
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


def _places(bins: Sequence[Bin]) -> dict[str, list[float]]:
    """Columns of where bins are."""
    ends = {"from": [b.low for b in bins], "to": [b.high for b in bins]}
    return ends | {"mean distance": [b.distance.value for b in bins]}
