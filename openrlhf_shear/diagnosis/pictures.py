"""Which pictures the findings can carry: the paper's kinds, each with its numbers, and why others are missing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from openrlhf_shear.diagnosis import figures
from openrlhf_shear.diagnosis.analyses.changes import Changes
from openrlhf_shear.diagnosis.analyses.groups import Groups
from openrlhf_shear.diagnosis.analyses.positions import PositionControl
from openrlhf_shear.diagnosis.analyses.separation import Separation
from openrlhf_shear.diagnosis.analyses.trend import Trend
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.figures import Picture
from openrlhf_shear.report.findings import Omission
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
        paths = zip(curve.positions, curve.accuracy, curve.distance, strict=True)
        yield Picture(
            name,
            heading,
            f"{place}; {_rho(curve.rho)}",
            f"Mean continuation accuracy (left) and distance (right) of prefixes by position, with {INTERVALS}. "
            f"{_rho(curve.rho)} over {len(curve.positions)} positions that at least {_problems(curve.reach)} reach"
            f"{left_out}; {_rests(curve.rho)}. Deep positions are reached by long rollouts only.",
            ("position", *_columns("accuracy"), *_columns("distance"), "problems", "rows"),
            tuple((p, *_three(a), *_three(d), a.problems, a.rows) for p, a, d in paths),
            partial(figures.plot_trend, curve=curve),
        )


def changes_picture(changes: Changes, place: str) -> Picture | Omission:
    heading = "Local association of stride-wise changes"
    if changes.events.empty:
        return Omission(heading, f"no neighbouring prefixes differ by {changes.threshold:.4g} in accuracy")
    return Picture(
        "changes",
        heading,
        f"{place}; {_rho(changes.rho)}",
        f"Changes from one prefix of a rollout to the next, where |dAcc| is at least {changes.threshold:.4g} "
        f"({changes.rho.rows:,} of {changes.strides:,} strides): how many have which change (logarithmic), and "
        f"the mean change of distance by change of accuracy, with {INTERVALS}. {_rho(changes.rho)}; "
        f"{_rests(changes.rho, 'changes')}.",
        ("change of accuracy", *_columns("change of distance"), "problems", "events"),
        tuple((one.change, *_numbers(one.distance)) for one in changes.levels),
        partial(figures.plot_changes, changes=changes),
    )


def separation_pictures(found: Separation, place: str) -> Iterator[Picture | Omission]:
    headings = ("Accuracy by distance and outcome", "Separability by distance", "Accuracies by bin of distance")
    if not found.bins:
        yield from (Omission(heading, "there is no prefix") for heading in headings)
        return
    of = f"{found.spans_correct.value:,} prefixes of originally correct rollouts, {found.spans_incorrect.value:,} of "
    of += f"originally incorrect ones; {len(found.bins)} bins of distance with about as many prefixes each"
    yield Picture(
        "accuracy",
        headings[0],
        place,
        f"Each dot a prefix, moved a little up or down; lines are means by bin, with {INTERVALS}. {of}.",
        ("from", "to", "mean distance", *_columns("correct"), *_columns("incorrect"), "prefixes"),
        tuple(
            (*_bin(b), *_three(b.accuracy_correct), *_three(b.accuracy_incorrect), b.distance.rows) for b in found.bins
        ),
        partial(figures.plot_accuracy, found=found),
    )
    yield Picture(
        "auc",
        headings[1],
        place,
        "How well continuation accuracy tells prefixes of originally correct rollouts from those of incorrect ones "
        "(0.5 is chance) by bin of distance: over all pairs, those at the same position, and those of one problem at "
        f"the same position, with {INTERVALS}. {of}.",
        (
            "from",
            "to",
            "mean distance",
            *_columns("AUC"),
            *_columns("AUC at the same position"),
            *_columns("AUC of the same problem and position"),
            "problems",
            "prefixes",
        ),
        tuple(
            (*_bin(b), *_three(b.auc), *_three(b.auc_position), *_three(b.auc_problem), b.auc.problems, b.auc.rows)
            for b in found.bins
        ),
        partial(figures.plot_aucs, bins=found.bins),
    )
    rows = [
        (*_bin(b), level, *_three(correct), *_three(incorrect))
        for b in found.bins
        for level, correct, incorrect in zip(found.levels, b.density_correct, b.density_incorrect, strict=True)
    ]
    yield Picture(
        "densities",
        headings[2],
        place,
        f"The share of each outcome's prefixes at each accuracy, a panel a bin, with {INTERVALS}. {of}.",
        ("from", "to", "mean distance", "accuracy", *_columns("correct"), *_columns("incorrect")),
        tuple(rows),
        partial(figures.plot_densities, found=found),
        height=3.1 if len(found.bins) <= figures.COLUMNS else 4.4,
    )


def positions_picture(found: PositionControl, place: str) -> Picture | Omission:
    heading = "Accuracy by distance within groups of positions"
    if not found.groups:
        return Omission(heading, "there is no prefix")
    rows = [
        (group.first, group.last, distance.value, *_numbers(accuracy))
        for group in found.groups
        for distance, accuracy in zip(group.distance, group.accuracy, strict=True)
    ]
    return Picture(
        "positions",
        heading,
        f"{place}; at fixed position {_rho(found.rho_fixed)}",
        f"Mean accuracy by quantile of distance, a line a group of prefix positions, with {INTERVALS}. Over all "
        f"prefixes {_rho(found.rho)}; of ranks within single positions {_rho(found.rho_fixed)}; {_rests(found.rho)}.",
        ("from", "to", "mean distance", *_columns("accuracy"), "problems", "prefixes"),
        tuple(rows),
        partial(figures.plot_positions, groups=found.groups),
    )


def groups_picture(found: Groups, place: str) -> Picture | Omission:
    heading = "Accuracies of groups"
    if not found.retained.rows:
        return Omission(heading, "there is no graded rollout")
    rows = [
        (one.accuracy, one.groups, *_three(one.share), "" if one.retained_share is None else one.retained_share.value)
        for one in found.levels
    ]
    kept = f"{found.retained.value:.1%} of {_problems(found.retained.problems)} retained"
    return Picture(
        "groups",
        heading,
        f"{place}; {kept}",
        f"How many of a problem's {found.samples} rollouts are correct, with {INTERVALS}. {kept}: groups with correct "
        "and incorrect rollouts.",
        ("accuracy", "groups", *_columns("share"), "share of retained"),
        tuple(rows),
        partial(figures.plot_groups, found=found),
    )


def profile_picture(found: FirstErrors | None, place: str) -> Picture | Omission:
    heading = "Omega around the first error"
    if found is None or not found.rollouts:
        return Omission(heading, "no incorrect rollout of a mixed group has a first error that is known")
    rows = [(p.offset, *_three(p.omega), *_three(p.control), p.omega.problems, p.omega.rows) for p in found.profile]
    return Picture(
        "first_error",
        heading,
        place,
        f"Mean omega by distance to the first wrong token of {found.rollouts:,} incorrect rollouts of "
        f"{_problems(found.auc.problems)}, and of the correct rollouts of their groups at the same tokens, with "
        f"{INTERVALS}. A token's omega is of all spans that cover it, so it rises before the error; the distance is "
        "symmetric, so correct rollouts rise too.",
        ("offset", *_columns("omega"), *_columns("correct rollouts"), "problems", "rollouts"),
        tuple(rows),
        partial(figures.plot_profile, profile=found.profile),
    )


def _problems(number: int) -> str:
    return "one problem" if number == 1 else f"{number:,} problems"


def _rests(estimate: Estimate, rows: str = "prefixes") -> str:
    return f"{estimate.rows:,} {rows} of {_problems(estimate.problems)}"


def _rho(rho: Estimate) -> str:
    if rho.value is None:
        return "rho not defined"
    interval = "" if rho.low is None else f" ({rho.low:.2f} to {rho.high:.2f})"
    return f"rho {rho.value:.2f}{interval}"


def _columns(name: str) -> tuple[str, str, str]:
    return name, f"{name}, low", f"{name}, high"


def _three(estimate: Estimate) -> tuple:
    """Value and interval, as in a picture's rows; empty where there is none."""
    return tuple("" if number is None else number for number in (estimate.value, estimate.low, estimate.high))


def _numbers(estimate: Estimate) -> tuple:
    return *_three(estimate), estimate.problems, estimate.rows


def _bin(one) -> tuple[float, float, float]:
    return one.low, one.high, one.distance.value
