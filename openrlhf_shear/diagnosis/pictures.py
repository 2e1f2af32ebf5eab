"""The diagnosis' pictures, in the paper's kinds, with their numbers, and the reasons for missing ones.

Each function takes an analysis and the place: the backbone and task for headings. Bands and whiskers are 95% intervals.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from openrlhf_shear.report import figures
from openrlhf_shear.report.bootstrap import Analysis
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.figures import Picture, Series, Theme, columns, spread
from openrlhf_shear.report.findings import Omission
from openrlhf_shear.rollouts.record import Rollout

INTERVALS = "95% bootstrap intervals over problems"
OUTCOMES = {True: ("Originally correct", "blue"), False: ("Originally incorrect", "vermilion")}
GROUP_INKS = ("gray", "blue", "orange", "purple", "green", "vermilion", "brown")
ACCURACY, DISTANCE = "Continuation accuracy", "Distance to the opposing side (nbar)"
COLUMNS = 5  # of small multiples


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
            partial(_plot_trend, curve=curve),
        )


def lags_picture(lags: Analysis, place: str) -> Picture | Omission:
    heading = "Changes around the first error"
    study = [change for change in lags.errors if change.distance.value is not None]
    if not study:
        return Omission(heading, "no rollout of a mixed group has a first error with prefixes around it", "lags")
    names = "Change of accuracy", "Change of distance (nbar)"
    x, accuracy, distance = ([change[name] for change in study] for name in ("lag", "accuracy", "distance"))
    curve = Analysis({"positions": x, "accuracy": accuracy, "distance": distance})
    return Picture(
        *("lags", heading, place),
        "Mean change from one prefix to the next of incorrect rollouts minus that of their groups' correct rollouts at "
        f"the same position, with {INTERVALS}. Changes are by strides after the one that holds the first wrong token. "
        "In that stride the window holds only the tokens since the error.",
        *columns({"lag": x, **spread("accuracy", accuracy), **spread("distance", distance), **_counts(distance)}),
        partial(_plot_trend, curve=curve, names=names, along="Strides after the one with the first error"),
    )


def _plot_trend(
    axis: Axes,
    theme: Theme,
    curve: Analysis,
    names: tuple[str, str] = (ACCURACY, DISTANCE),
    along: str = "Prefix length (tokens)",
) -> None:
    right = axis.twinx()
    right.spines["right"].set_visible(True)
    sides = ((axis, "blue", names[0], curve.accuracy), (right, "brown", names[1], curve.distance))
    for side, ink, label, estimates in sides:
        side.set_ylabel(label, color=theme.ink(ink))
        side.tick_params(axis="y", colors=theme.ink(ink))
        figures.line(side, theme, curve.positions, estimates, ink, label)
    # a legend sees the first axis only
    axis.plot([], [], label=names[1], **figures.line_style(theme, "brown", len(curve.positions)))
    axis.set_xlabel(along)
    axis.grid(linewidth=0.6)


def changes_picture(changes: Analysis, place: str) -> Picture | Omission:
    heading = "Local association of stride-wise changes"
    rho, events, step = changes.rho, changes.table, changes.threshold
    if events.empty:
        return Omission(heading, f"no neighbouring prefixes differ by {step:.4g} in accuracy", "changes")
    levels, means = [level.change for level in changes.levels], [level.distance for level in changes.levels]

    def plot(axis: Axes, theme: Theme) -> None:
        x = np.arange(events["d_accuracy"].min() - step / 2, events["d_accuracy"].max() + step, step)
        y = np.linspace(events["d_distance"].min(), events["d_distance"].max() + 1e-9, 41)
        counts = np.histogram2d(events["d_accuracy"], events["d_distance"], (x, y))[0].T
        shown, norm = np.ma.masked_equal(counts, 0), LogNorm(1, max(counts.max(), 2))
        image = axis.pcolormesh(x, y, shown, cmap="cividis_r", norm=norm, rasterized=True)  # rare events are bright
        bar = axis.figure.colorbar(image, ax=axis, label="Events", format="{x:g}")  # the default writes mathematics
        bar.minorticks_off()  # with few events it would label these too
        bar.outline.set_visible(False)
        figures.whiskers(axis, theme, levels, means, "vermilion", "Mean, 95% interval")
        axis.axhline(0, color=theme.text, linewidth=0.8)
        axis.axvline(0, color=theme.text, linewidth=0.8)
        axis.set(xlabel="Change of continuation accuracy", ylabel="Change of distance (nbar)")

    return Picture(
        *("changes", heading, f"{place}; {_rho(rho)}"),
        f"Changes from one prefix of a rollout to the next, where |dAcc| is at least {step:.4g} "
        f"({rho.rows:,} of {changes.strides:,} strides): how many have which change (logarithmic), and the mean change "
        f"of distance by change of accuracy, with {INTERVALS}. {_rho(rho)}; {_rests(rho, 'changes')}.",
        *columns({"change of accuracy": levels, **spread("change of distance", means), **_counts(means, "events")}),
        plot,
    )


def separation_pictures(separation: Analysis, place: str) -> Iterator[Picture | Omission]:
    kinds = {
        ("accuracy", "Accuracy by distance and outcome"): _accuracy_picture,
        ("auc", "Separability by distance"): _auc_picture,
        ("densities", "Accuracies by bin of distance"): _densities_picture,
    }
    bins, correct, incorrect = separation.bins, separation.spans_correct, separation.spans_incorrect
    if not bins:
        yield from (Omission(heading, "there is no prefix", name) for name, heading in kinds)
        return
    of = f"{correct.value:,} prefixes of originally correct rollouts, {incorrect.value:,} of originally incorrect ones"
    of += f"; {len(bins)} bins of distance with about as many prefixes each"
    yield from (draw(separation, of, name, heading, place) for (name, heading), draw in kinds.items())


def _accuracy_picture(separation: Analysis, of: str, *named: str) -> Picture:
    bins, points = separation.bins, separation.table
    means = {True: [b.accuracy_correct for b in bins], False: [b.accuracy_incorrect for b in bins]}

    def plot(axis: Axes, theme: Theme) -> None:
        rng = np.random.default_rng(0)
        blur = 0.35 * separation.levels[1]  # spreads equal accuracies
        shown = rng.permutation(len(points))  # puts no outcome always on top
        colours = np.where(points["correct"], *(theme.ink(OUTCOMES[outcome][1]) for outcome in (True, False)))
        heights = points["accuracy"].to_numpy() + rng.uniform(-blur, blur, len(points))
        opacity = float(np.clip(600 / max(len(points), 1), 0.06, 0.5))
        dots = points["distance"].to_numpy()[shown], heights[shown]
        axis.scatter(*dots, s=5, c=colours[shown], alpha=opacity, linewidth=0, rasterized=True)
        for outcome, (label, ink) in OUTCOMES.items():
            figures.whiskers(axis, theme, [b.distance.value for b in bins], means[outcome], ink, label, outlined=True)
        axis.set(xlabel=DISTANCE, ylabel=ACCURACY, ylim=(-0.05, 1.05))
        axis.grid(linewidth=0.6)

    numbers = _places(bins) | spread("correct", means[True]) | spread("incorrect", means[False])
    return Picture(
        *named,
        f"Each dot a prefix, moved a little up or down; lines are means by bin, with {INTERVALS}. {of}.",
        *columns(numbers | {"prefixes": [b.distance.rows for b in bins]}),
        plot,
    )


def _auc_picture(separation: Analysis, of: str, *named: str) -> Picture:
    bins = separation.bins
    position, problem = "at the same position", "of the same problem and position"
    series = [
        Series("AUC", "All pairs", "blue", [b.auc for b in bins]),
        Series(f"AUC {position}", f"Pairs {position}", "orange", [b.auc_position for b in bins]),
        Series(f"AUC {problem}", f"Pairs {problem}", "purple", [b.auc_problem for b in bins]),
    ]

    def plot(axis: Axes, theme: Theme) -> None:
        for each in series:
            figures.whiskers(axis, theme, [b.distance.value for b in bins], each.numbers, each.ink, each.label)
        axis.axhline(y=0.5, color=theme.text, linewidth=0.8)
        axis.set(xlabel=DISTANCE, ylabel="AUC, correct against incorrect")
        axis.grid(linewidth=0.6)

    numbers = {title: column for each in series for title, column in each.columns.items()}
    return Picture(
        *named,
        "How well continuation accuracy tells prefixes of originally correct rollouts from those of incorrect ones "
        "(0.5 is chance) by bin of distance. Pairs are all pairs, those at the same position, or those of one problem "
        f"at the same position, with {INTERVALS}. {of}.",
        *columns({**_places(bins), **numbers, **_counts([b.auc for b in bins], "prefixes")}),
        plot,
    )


def _densities_picture(separation: Analysis, of: str, *named: str) -> Picture:
    """Draw a small panel for each bin."""
    bins, levels = separation.bins, separation.levels

    def plot(axis: Axes, theme: Theme) -> None:
        titles = [f"{b.low:.2f} to {b.high:.2f}" for b in bins]
        legend = {label: figures.line_style(theme, ink) for label, ink in OUTCOMES.values()}
        shown = figures.panels(axis, titles, "Accuracy", "Share of the outcome's prefixes", COLUMNS, legend)
        for panel, b in zip(shown, bins, strict=True):
            for outcome, density in ((True, b.density_correct), (False, b.density_incorrect)):
                label, ink = OUTCOMES[outcome]
                figures.line(panel, theme, levels, density, ink, label, marker="", linewidth=1.2)
            panel.set(xticks=(0, 0.5, 1), xticklabels=("0", ".5", "1"))
        highest = max(share.value or 0 for b in bins for share in (*b.density_correct, *b.density_incorrect))
        panel.set_ylim(0, 1.05 * highest)

    densities = spread("correct", [share for b in bins for share in b.density_correct])
    densities |= spread("incorrect", [share for b in bins for share in b.density_incorrect])
    return Picture(
        *named,
        f"The share of each outcome's prefixes at each accuracy, a panel a bin, with {INTERVALS}. {of}.",
        *columns({**_places([b for b in bins for _ in levels]), "accuracy": levels * len(bins), **densities}),
        plot,
        height=3.1 if len(bins) <= COLUMNS else 4.4,
    )


def positions_picture(control: Analysis, place: str) -> Picture | Omission:
    heading = "Accuracy by distance within groups of positions"
    if not control.groups:
        return Omission(heading, "there is no prefix", "positions")

    def plot(axis: Axes, theme: Theme) -> None:
        for i, group in enumerate(control.groups):
            rho = "" if group.rho.value is None else f": rho {group.rho.value:.2f}"
            label = f"Tokens {group.first} to {group.last}{rho}"
            figures.whiskers(axis, theme, [e.value for e in group.distance], group.accuracy, GROUP_INKS[i % 7], label)
        axis.set(xlabel=DISTANCE, ylabel=ACCURACY)
        axis.grid(linewidth=0.6)

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
        plot,
    )


def groups_picture(groups: Analysis, place: str) -> Picture | Omission:
    heading, levels, retained = "Accuracies of groups", groups.levels, groups.retained
    if not retained.rows:
        return Omission(heading, "there is no graded rollout", "groups")

    def plot(axis: Axes, theme: Theme) -> None:
        for mixed, ink, label in ((True, "blue", "Retained"), (False, "gray", "All correct or all incorrect")):
            shown = [level for level in levels if (level.retained_share is not None) == mixed]
            x, (values, around) = [level.accuracy for level in shown], figures.reach([level.share for level in shown])
            hatch = None if mixed else "//"
            bars = {"width": 0.8 / groups.samples, "alpha": theme.fill, "hatch": hatch, "edgecolor": theme.paper}
            axis.bar(x, values, color=theme.ink(ink), label=label, linewidth=0, **bars)
            axis.errorbar(x, values, yerr=around, color=theme.text, linestyle="", capsize=3, linewidth=1.1)
        axis.set(xlabel="Accuracy of the group", ylabel="Share of groups")
        ticks = [level.accuracy for level in levels[:: -(-groups.samples // 8)]]
        axis.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
        axis.grid(axis="y", linewidth=0.6)

    numbers = {
        "accuracy": [level.accuracy for level in levels],
        "groups": [level.groups for level in levels],
        **spread("share", [level.share for level in levels]),
        "share of retained": spread("", [level.retained_share for level in levels])[""],
    }
    share = f"{retained.value:.1%} of {_problems(retained.problems)} retained"
    return Picture(
        *("groups", heading, f"{place}; {share}"),
        f"How many of a problem's {groups.samples} rollouts are correct, with {INTERVALS}. {share}: groups with "
        "correct and incorrect rollouts.",
        *columns(numbers),
        plot,
    )


def profile_picture(errors: Analysis | None, place: str) -> Picture | Omission:
    heading = "Omega around the first error"
    if errors is None or not errors.rollouts:
        reason = "no incorrect rollout of a mixed group has a first error that is known"
        return Omission(heading, reason, "first_error")
    omega, control = ([point[name] for point in errors.profile] for name in ("omega", "control"))
    series = [
        Series("omega", "Incorrect rollouts", "vermilion", omega),
        Series("correct rollouts", "The group's correct rollouts, same tokens", "blue", control),
    ]
    x = [point.offset for point in errors.profile]

    def plot(axis: Axes, theme: Theme) -> None:
        for each in series:
            figures.line(axis, theme, x, each.numbers, each.ink, each.label)
        axis.axvline(color=theme.text, linewidth=0.8)
        axis.set(xlabel="Tokens from the first error", ylabel="Mean omega")
        axis.grid(linewidth=0.6)

    return Picture(
        *("first_error", heading, place),
        f"Mean omega by distance to the first wrong token of {errors.rollouts:,} incorrect rollouts of "
        f"{_problems(errors.auc.problems)}, and of the correct rollouts of their groups at the same tokens, with "
        f"{INTERVALS}. A token's omega is of all spans that cover it, so it rises before the error; the distance is "
        "symmetric, so correct rollouts rise too.",
        *columns(
            {"offset": x, **_counts(omega, "rollouts")}
            | {title: column for each in series for title, column in each.columns.items()}
        ),
        plot,
    )


def _problems(number: int) -> str:
    return "one problem" if number == 1 else f"{number:,} problems"


def _rests(estimate: Estimate, rows: str = "prefixes") -> str:
    return f"{estimate.rows:,} {rows} of {_problems(estimate.problems)}"


def _rho(rho: Estimate) -> str:
    return "rho not defined" if rho.value is None else f"rho {rho.text('.2f')}"


def _counts(estimates: Sequence[Estimate], rows: str = "rows") -> dict[str, list[int]]:
    """Return the columns of the numbers of problems and rows of the estimates."""
    return {"problems": [estimate.problems for estimate in estimates], rows: [estimate.rows for estimate in estimates]}


def _places(bins: Sequence[Analysis]) -> dict[str, list[float]]:
    """Return the columns of the bins' ends and mean distances."""
    ends = {"from": [b.low for b in bins], "to": [b.high for b in bins]}
    return ends | {"mean distance": [b.distance.value for b in bins]}


def heatmap_picture(rollouts: Sequence[Rollout], place: str) -> Picture | Omission:
    """Draw the heatmap of the longest pair, a correct and an incorrect rollout, of the first group that has some."""
    heading = "Distances between two rollouts' spans"
    pair = _longest_pair(rollouts)
    if pair is None:
        return Omission(heading, "no correct and incorrect rollout of a group have a heatmap", "heatmap")
    correct, incorrect, values = pair
    error = incorrect.first_error

    def plot(axis: Axes, theme: Theme) -> None:
        image = axis.imshow(np.ma.masked_invalid(values), cmap="cividis", aspect="auto")
        axis.figure.colorbar(image, ax=axis, label="Distance (nbar)").outline.set_visible(False)
        for side, starts in ((axis.yaxis, values.index), (axis.xaxis, values.columns)):
            shown = range(0, len(starts), max(1, -(-len(starts) // 8)))
            side.set_ticks(shown, [starts[i] for i in shown])
        if error is not None:
            first = np.searchsorted(values.columns, error) - 0.5
            axis.axvline(first, color="white", linewidth=2.6)
            axis.axvline(first, color="black", linewidth=1.2, linestyle="--")
        names = f"Correct rollout {correct.sample}", f"Incorrect rollout {incorrect.sample}"
        axis.set(ylabel=f"{names[0]}, span's first token", xlabel=f"{names[1]}, span's first token")

    rows = [(start, column, values.loc[start, column]) for start in values.index for column in values.columns]
    marked = "" if error is None else " The line stands before the first span that starts at or after the first error."
    return Picture(
        *("heatmap", heading, f"{place}; problem {correct.group}"),
        f"Pairwise distances in units of nbar between spans of rollout {correct.sample} (correct, "
        f"{len(correct.tokens)} tokens) and {incorrect.sample} (incorrect, {len(incorrect.tokens)} tokens) of problem "
        f"{correct.group}.{marked}",
        ("correct rollout's span", "incorrect rollout's span", "distance"),
        tuple((int(a), int(b), float(value) if np.isfinite(value) else "") for a, b, value in rows),
        plot,
        height=4.2,
    )


def _longest_pair(rollouts: Sequence[Rollout]) -> tuple[Rollout, Rollout, pandas.DataFrame] | None:
    """Return a correct and an incorrect rollout and their distances, by the starts of their spans (rows, columns)."""
    by_sample = {(rollout.group, rollout.sample): rollout for rollout in rollouts}
    pairs = [
        (rollout, by_sample[rollout.group, heatmap.other], heatmap.values)
        for rollout in rollouts
        for heatmap in rollout.heatmaps or ()
        if heatmap.values and {rollout.correct, by_sample[rollout.group, heatmap.other].correct} == {True, False}
    ]
    if not pairs:
        return None
    of_first_group = [pair for pair in pairs if pair[0].group == pairs[0][0].group]
    first, second, values = max(of_first_group, key=lambda pair: len(pair[0].tokens) + len(pair[1].tokens))
    starts = [[of.span_starts[span] for span in of.heatmap_spans] for of in (first, second)]
    table = pandas.DataFrame(np.reshape(values, (len(starts[0]), len(starts[1]))), *starts)
    return (first, second, table) if first.correct else (second, first, table.T)
