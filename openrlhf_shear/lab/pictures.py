"""Which pictures the lab's findings can carry, each with its numbers, and why others are missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from openrlhf_shear.lab import figures
from openrlhf_shear.lab.placement import Placement
from openrlhf_shear.lab.worth import Block, Versus, Worth
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.figures import Picture
from openrlhf_shear.report.findings import Omission

ENDS = 1.6  # inches, of a picture's title, axis and legend
LINE = 0.14  # of a line of a rule's name


def worth_picture(worths: Sequence[Worth], baseline: str, place: str) -> Picture | Omission:
    heading = f"Mean accuracy over {baseline}"
    rows = [worth for worth in worths if "baseline" in worth.against]
    if not rows:
        return Omission(heading, f"no rule shares a seed with {baseline}")
    return Picture(
        "worth",
        heading,
        place,
        f"Mean accuracy over the steps of training minus that of {baseline} and (hollow) of the rule's own "
        "mass-matched control, with 95% intervals paired over seeds.",
        ("rule", *_columns(f"over {baseline}"), *_columns("over matched")),
        tuple((row.rule, *_paired(row.against["baseline"]), *_paired(row.against.get("matched"))) for row in rows),
        partial(figures.plot_worth, rows=rows, baseline=baseline),
        ENDS + _lines(row.rule for row in rows),
    )


def curves_picture(curves: Mapping[str, Sequence[Block]], baseline: str, place: str) -> Picture | Omission:
    """`curves` is rule -> blocks, of `worth.curve`."""
    heading = f"Learning curves beside {baseline}"
    shown = {rule: blocks for rule, blocks in curves.items() if blocks}
    if not shown:
        return Omission(heading, f"no rule shares a seed with {baseline}")
    return Picture(
        "curves",
        heading,
        place,
        f"Accuracy of the rollouts in blocks of steps, beside {baseline} on the same seeds. The band is half of the "
        f"paired 95% interval of the difference to either side: where {baseline} leaves it, that interval excludes 0.",
        ("rule", "first step", "last step", "accuracy", baseline, *_columns("difference")),
        tuple(
            (rule, one.first, one.last, one.mean, one.baseline, *_numbers(one.difference), one.difference.seeds)
            for rule, blocks in shown.items()
            for one in blocks
        ),
        partial(figures.plot_curves, curves=shown, baseline=baseline),
        _panels_height(shown),
    )


def placement_picture(placements: Mapping[str, Placement], place: str) -> Picture | Omission:
    heading = "Where the credit goes"
    if not placements:
        return Omission(heading, "no placement was measured")
    columns = [f"{name}{end}" for name, _ in figures.AUCS for end in ("", ", low", ", high")]
    return Picture(
        "placement",
        heading,
        place,
        "AUC of token weights after against before the first error of incorrect rollouts, and its controls, with 95% "
        "bootstrap intervals over problems. Weights that merely rise along a rollout move the controls too.",
        ("rule", *columns, "rollouts"),
        tuple(
            (rule, *(number for one in figures.aucs(found) for number in _numbers(one)), found.errors.rollouts)
            for rule, found in placements.items()
        ),
        partial(figures.plot_placement, placements=placements),
        ENDS + 0.6 + _lines(placements, 0.24),
    )


def profile_picture(placements: Mapping[str, Placement], place: str) -> Picture | Omission:
    heading = "Weights around the first error"
    shown = {rule: found.errors for rule, found in placements.items() if found.errors.rollouts}
    if not shown:
        return Omission(heading, "no rule has an incorrect rollout whose first error lies inside it")
    return Picture(
        "profile",
        heading,
        place,
        "Mean weight by distance to the first wrong token of incorrect rollouts, and of the correct rollouts of their "
        "groups at the same tokens, with 95% bootstrap intervals over problems. Scales differ.",
        ("rule", "offset", *_columns("incorrect")[:3], *_columns("correct")[:3]),
        tuple(
            (rule, one.offset, *_numbers(one.omega), *_numbers(one.control))
            for rule, found in shown.items()
            for one in found.profile
        ),
        partial(figures.plot_profiles, placements=shown),
        _panels_height(shown),
    )


def _lines(rules: Iterable[str], least: float = 0.2) -> float:
    """Inches of rows that must each hold a rule's name; all are as high as the highest must be."""
    lines = [figures.wrapped(rule).count("\n") + 1 for rule in rules]
    return len(lines) * max(least, LINE * max(lines) + 0.06)


def _panels_height(rules: Iterable[str]) -> float:
    lines = [figures.wrapped(rule, figures.PANEL).count("\n") + 1 for rule in rules]
    return ENDS + -(-len(lines) // figures.COLUMNS) * (1.0 + LINE * max(lines))


def _columns(name: str) -> tuple[str, ...]:
    return name, f"{name}, low", f"{name}, high", f"{name}, seeds"


def _paired(found: Versus | None) -> tuple:
    return ("",) * 4 if found is None else (*_numbers(found.mean), found.mean.seeds)


def _numbers(found) -> tuple:
    """Value and interval of an `Estimate` or a `Paired`, as in a picture's rows; empty where there is none."""
    value = found.value if isinstance(found, Estimate) else found.mean
    return tuple("" if number is None else number for number in (value, found.low, found.high))
