"""Which analyses a diagnosis makes: of the distance, of its controls, and of the text in place of hidden states."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas
import torch

from openrlhf_shear.credit.shear import pool_spans
from openrlhf_shear.diagnosis.analyses.controls import (
    noise_floor,
    opposing_rollouts,
    position_control,
    quartiles,
    truncation,
    within_problems,
)
from openrlhf_shear.diagnosis.analyses.groups import group_accuracies
from openrlhf_shear.diagnosis.analyses.separation import separation
from openrlhf_shear.diagnosis.analyses.trend import aggregate_trend, lagged_changes, stride_changes
from openrlhf_shear.diagnosis.text import TextControl
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap
from openrlhf_shear.rollouts.columns import CONTROL_COLUMNS
from openrlhf_shear.rollouts.localisation import contrast, first_errors, traces_of
from openrlhf_shear.rollouts.record import Rollout

DISTANCES = {"opposing": "distance", **{name: f"{name}_distance" for name in CONTROL_COLUMNS}}  # of prefixes


def analyses(
    usable: pandas.DataFrame,
    rollouts: Sequence[Rollout],
    settings: Mapping,
    bootstrap: Bootstrap,
    text: TextControl | None,
) -> Iterator[tuple[str, Analysis | None]]:
    """Yield each analysis with its name, in the order of results.json; for arguments see `find`.

    Args:
        usable: the prefixes with a finite distance and a verdict.
    """
    measured = usable[np.isfinite(usable[list(DISTANCES.values())]).all(axis=1)]
    largest = max((r.largest_norm for r in rollouts if r.largest_norm and np.isfinite(r.largest_norm)), default=1.0)
    yield "groups", group_accuracies(rollouts, settings["samples_per_prompt"], bootstrap, settings.get("problems"))
    yield from _of_distance(usable, rollouts, settings, bootstrap)
    yield "truncation", truncation(usable, bootstrap)
    noise = partial(noise_floor, measured, _errors(rollouts), settings["window"], largest, bootstrap)
    yield "noise", noise() if len(measured) else None
    yield "controls", _controls(measured, rollouts, settings, bootstrap) if len(measured) else None
    yield "text", _text(text, usable, measured.index, rollouts, settings, bootstrap) if text else None


def _of_distance(
    usable: pandas.DataFrame, rollouts: Sequence[Rollout], settings: Mapping, bootstrap: Bootstrap
) -> Iterator[tuple[str, Analysis | None]]:
    """Yield the analyses that depend on the distance."""
    completions, window, stride = settings["completions"], settings["window"], settings["stride"]
    errors, traces = _errors(rollouts), traces_of(rollouts)
    yield "trend", aggregate_trend(usable, bootstrap)
    yield "quartiles", quartiles(usable, bootstrap)
    yield "contrast", contrast(traces, bootstrap)
    yield "changes", stride_changes(usable, completions, stride, bootstrap)
    yield "separation", separation(usable, completions, bootstrap)
    yield "positions", position_control(usable, bootstrap)
    yield "within", within_problems(usable, opposing_rollouts(usable, rollouts), bootstrap)
    yield "lags", lagged_changes(usable, errors, window, stride, completions, bootstrap)
    yield "first_errors", first_errors(traces, window, bootstrap) if errors else None


def _errors(rollouts: Sequence[Rollout]) -> dict[tuple[str, int], int]:
    return {(r.group, r.sample): r.first_error for r in rollouts if r.first_error is not None}


def _controls(
    measured: pandas.DataFrame, rollouts: Sequence[Rollout], settings: Mapping, bootstrap: Bootstrap
) -> Analysis:
    """Return the analyses of each distance by its name, all over the same prefixes and rollouts."""
    columns, found = {"opposing": "span_distances", **CONTROL_COLUMNS}, Analysis()

    def has_all(rollout: Rollout) -> bool:
        return all(np.isfinite(getattr(rollout, column) or [np.nan]).all() for column in columns.values())

    known = [bool(rollout.weights) and has_all(rollout) for rollout in rollouts]
    for kind, column in DISTANCES.items():
        weighed = [
            replace(r, weights=_weights(r, getattr(r, columns[kind]), settings) if measurable else None)
            for r, measurable in zip(rollouts, known, strict=True)
        ]
        found[kind] = Analysis(_of_distance(measured.assign(distance=measured[column]), weighed, settings, bootstrap))
    return found


def _text(
    text: TextControl,
    usable: pandas.DataFrame,
    measured: pandas.Index,
    rollouts: Sequence[Rollout],
    settings: Mapping,
    bootstrap: Bootstrap,
) -> Analysis:
    """Return the analyses of the text, over the same prefixes and rollouts; rows `measured` have a noise."""
    at = {(r.group, r.sample, start): k for r in rollouts for k, start in enumerate(r.span_starts or ())}
    ends = zip(usable["problem"], usable["sample"], usable["position"], strict=True)
    ours = [(text.spans[p, s], at[p, s, end - settings["window"]]) for p, s, end in ends]
    prefixes = usable.assign(
        distance=[spans.span_distances[k] for spans, k in ours],
        same_distance=[(spans.same_distances or {k: np.nan})[k] for spans, k in ours],
    )
    weighed = [replace(r, weights=text.spans[r.group, r.sample].weights) if r.weights else r for r in rollouts]
    found = Analysis(_of_distance(prefixes, weighed, settings, bootstrap))
    noise = partial(noise_floor, prefixes.loc[measured], _errors(rollouts), settings["window"], 1.0, bootstrap)
    found["noise"] = noise() if len(measured) else None
    return found


def _weights(rollout: Rollout, distances: Sequence[float], settings: Mapping) -> list[float]:
    starts, pool = torch.tensor(rollout.span_starts), settings.get("pool", "max")
    return pool_spans(torch.tensor(distances), starts, len(rollout.tokens), settings["window"], pool).tolist()
