"""The lab's two tables as text: where the credit goes, and what it is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from openrlhf_shear.lab.placement import Placement
from openrlhf_shear.lab.worth import Versus, Worth
from openrlhf_shear.report.estimates import Stat
from openrlhf_shear.report.paired import FEW_PAIRS, POWER, Paired
from openrlhf_shear.report.tables import Table

MATCHED = (
    "Matched is the rule's own mass-matched control: uniform weights, incorrect and correct rollouts each scaled by "
    "one constant a step so that the total negative and positive credit equal the rule's. Shuffled is its own weights, "
    "shuffled within each rollout."
)


def placement_table(placements: Mapping[str, Placement]) -> Table | None:
    """None without placements."""
    if not placements:
        return None
    header = (
        *("Rule", "AUC after/before", "Same split of correct rollouts", "Random split", "Same index, all rollouts"),
        *("Same index, incorrect of a group", "Share within 1 token", "Largest within 1 token", "A random token"),
        "Rollouts",
    )
    rows = []
    for rule, placed in placements.items():
        errors = placed.errors
        aucs = errors.auc, errors.auc_control, errors.auc_random, errors.auc_matched, placed.auc_incorrect
        shares = placed.share, errors.hit, errors.hit_chance
        cells = [one.text(".3f") for one in aucs] + [one.text(".1%") for one in shares]
        rows.append((rule, *cells, f"{errors.rollouts:,}"))
    notes = [
        "AUC of the token weights of incorrect rollouts from the first error on against those before it, with 95% "
        "bootstrap intervals over problems; 0.5 tells nothing. Weights that merely rise along a rollout have a large "
        "AUC for any split, so compare with the two splits beside it.",
        "Same index: tokens already wrong against tokens still right at that index of other rollouts: of all, where a "
        "rule that scales correct and incorrect rollouts apart moves it wherever it puts the credit, and of incorrect "
        "rollouts of the same group, where it does not. A rule that leaves correct rollouts alone has 0.5 at their "
        "split by construction.",
        "Share within 1 token: how much of an incorrect rollout's credit its first wrong token and its two neighbours "
        "have; the chance that a largest weight is there; and that a random token is.",
    ]
    warnings = {
        f"{rule}, {what}: {one.warning}"
        for rule, placed in placements.items()
        for what, one in (("AUC", placed.errors.auc), ("share", placed.share), ("same index", placed.auc_incorrect))
        if one.warning
    }
    if warnings:
        notes.append(f"Intervals that say little: {'; '.join(sorted(warnings))}.")
    return Table("Where the credit goes", header, rows, notes)


def worth_table(worths: Sequence[Worth], baseline: str) -> Table | None:
    """Columns that no rule has are left out; None without runs."""
    if not worths:
        return None
    roles = {"baseline": baseline, "matched": "matched", "shuffled": "shuffled", "shear": "shear"}
    columns = {
        "Rule": [one.rule for one in worths],
        "Seeds": [f"{len(one.seeds)}" for one in worths],
        "Final accuracy": [_percent(one.final) for one in worths],
        f"Final over {baseline}": [_difference(one, "baseline", "final") for one in worths],
        "Mean accuracy": [_percent(one.mean) for one in worths],
        **{f"Mean over {name}": [_difference(one, role, "mean") for one in worths] for role, name in roles.items()},
        "Smallest effect": [_detectable(one.against.get("baseline")) for one in worths],
    }
    kept = {title: cells for title, cells in columns.items() if any(cells)}
    return Table("What it is worth", tuple(kept), list(zip(*kept.values(), strict=True)), _notes(worths, baseline))


def _notes(worths: Sequence[Worth], baseline: str) -> list[str]:
    shown = [interval for one in worths for interval in _intervals(one)]
    if not shown:
        return [f"No rule shares seeds with {baseline} or with a control of its own, so nothing is compared."]
    notes = [
        "Accuracies in percent, ± the sample std over seeds: final on held-out problems after the last step, mean over "
        "the rollouts of all steps. Differences in percentage points with 95% intervals (t, paired over seeds: equal "
        "seeds are equal problems and sampling seeds).",
        f"The table has {_intervals_text(len(shown))}. One in twenty such intervals misses the true difference by "
        f"chance, here about {len(shown) / 20:.1f}: one that just excludes 0 is a reason for fresh seeds.",
        *([MATCHED] if any({"matched", "shuffled"} & set(one.against) for one in worths) else []),
        f"Smallest effect: the true difference to {baseline} in mean accuracy, in percentage points, that as many "
        f"seeds with this spread would have shown with {POWER:.0%} power.",
        *_verdicts(worths, baseline),
    ]
    few = [one.rule for one in worths if any(versus.mean.seeds < FEW_PAIRS for versus in one.against.values())]
    if few:
        notes.append(
            f"Warning: fewer than {FEW_PAIRS} pairs of seeds, so intervals mean little, if any: {', '.join(few)}."
        )
    still = [one.rule for one in worths if any(v.mean.low == v.mean.high is not None for v in one.against.values())]
    if still:
        notes.append(f"Warning: all pairs differ alike, so an interval says nothing: {', '.join(still)}.")
    return notes


def _verdicts(worths: Sequence[Worth], baseline: str) -> list[str]:
    """Which rules' intervals of mean accuracy exclude 0, by what they are compared with."""
    lines = []
    for role, name in (("baseline", baseline), ("matched", "their matched controls"), ("shear", "shear")):
        means = {one.rule: one.against[role].mean for one in worths if role in one.against}
        means = {rule: mean for rule, mean in means.items() if mean.low is not None}
        above = ", ".join(rule for rule, mean in means.items() if mean.low > 0) or "none"
        below = ", ".join(rule for rule, mean in means.items() if mean.high < 0) or "none"
        if means:
            lines.append(f"Mean accuracy over {name}, intervals above 0: {above}; below 0: {below}.")
    return lines


def _intervals(worth: Worth) -> list[Paired]:
    """Those of the table's cells that have one."""
    cells = [versus.mean for versus in worth.against.values()]
    cells += [versus.final for role, versus in worth.against.items() if role == "baseline"]
    return [one for one in cells if one.low is not None]


def _intervals_text(number: int) -> str:
    return "one such interval" if number == 1 else f"{number} such intervals"


def _percent(one: Stat) -> str:
    return f"{one.mean:.1%}" + ("" if one.std is None else f" ± {100 * one.std:.1f}")


def _difference(worth: Worth, role: str, measure: str) -> str:
    """Empty without one; how many pairs where they are not all of the rule's seeds."""
    if role not in worth.against:
        return ""
    one: Paired = getattr(worth.against[role], measure)
    interval = one.interval(_points) or "no interval"
    pairs = "" if one.seeds == len(worth.seeds) else f", n = {one.seeds}"
    return f"{_points(one.mean)} ({interval}{pairs})"


def _points(value: float) -> str:
    """Percentage points with their sign, never -0.0."""
    return f"{round(100 * value, 1) + 0.0:+.1f}"


def _detectable(versus: Versus | None) -> str:
    return "" if versus is None or versus.mean.detectable is None else f"{100 * versus.mean.detectable:.1f}"
