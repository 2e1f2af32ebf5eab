"""Data of the page: an index of all rollouts, a block for each group, and the colours of weights and distances.

The page reads the index at once, and a block when its group is opened. Token numbers are base64 of little-endian
float32. Heatmap numbers are uint16 steps between the smallest and the largest value of the pair: the error is at most
half a step, 1/131068 of that range.
"""

import base64
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from openrlhf_shear.rollouts.record import Heatmap, Rollout, by_group, is_mixed

# From the page's paper to burnt orange, in even steps of OKLab lightness. One hue whose lightness only falls (in dark
# mode: rises) reads the same with every colour blindness. Only the first LEVELS carry text, at a contrast of at least
# 5.3; heatmaps carry no text and use all.
LEVELS = 10
LIGHT = (
    *("#fffaf0", "#fef1da", "#fee8c4", "#fddead", "#fcd596", "#f9c880", "#f5b76d", "#f0a659", "#eb9444", "#e5832a"),
    *("#ca6b1f", "#b05414", "#943f0e", "#762f0b", "#5a1f08"),
)
DARK = (
    *("#1d2026", "#272424", "#312822", "#3b2c1f", "#45301b", "#513518", "#5f3c17", "#6d4215", "#7b4812", "#8a4f0c"),
    *("#a96619", "#c97e25", "#e19a48", "#f1b976", "#ffd9a0"),
)
STEPS = 65534  # of a heatmap's range; the next code stands for a value that is not finite
_ESCAPES = {ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&"}


def css() -> str:
    """Return CSS: colours `--w0`, `--w1`, ... of the reader's scheme, and classes `.w0`, `.w1`, ... for shaded text."""

    def root(colours: tuple[str, ...]) -> str:
        return ":root {" + "".join(f" --w{i}: {colour};" for i, colour in enumerate(colours)) + " }\n"

    classes = "".join(f".w{i} {{ background: var(--w{i}); }}\n" for i in range(LEVELS))
    return root(LIGHT) + "@media (prefers-color-scheme: dark) { " + root(DARK) + "}\n" + classes


def group_rollouts(
    rollouts: Sequence[Rollout], limit: int | None = None, steps: Mapping[str, int] | None = None
) -> list[list[Rollout]]:
    """Return the rollouts of each group, by `sample`; groups in the order given, at most `limit` of a step."""
    whole, counts = [], Counter()
    for name, group in by_group(rollouts).items():
        step = (steps or {}).get(name)
        counts[step] += 1
        if limit is None or counts[step] <= limit:
            whole.append(sorted(group, key=lambda rollout: rollout.sample))
    return whole


def shading(rollout: Rollout) -> np.ndarray | None:
    """Return (T,) the shades of the tokens: the weights, else the sizes of the tokens' advantages, else None."""
    if rollout.weights:
        return np.array(rollout.weights, dtype=np.float32)
    if rollout.token_advantages:
        return np.abs(np.array(rollout.token_advantages, dtype=np.float32))
    return None


def index(
    groups: Sequence[Sequence[Rollout]], window: int | None, steps: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Return what the list shows, filters and sorts by, as JSON values: `window`, `groups` and `rows`.

    A row has the rollout's group and place in it, then its facts. `low`, `mean`, `high` and the standard deviation
    `spread` are of the finite numbers of its shading.
    """
    return {
        "window": window,
        "groups": [
            {"name": group[0].group, "mixed": is_mixed(group), "step": (steps or {}).get(group[0].group)}
            for group in groups
        ],
        "rows": [
            {"group": g, "place": place, **_facts(rollout)}
            for g, group in enumerate(groups)
            for place, rollout in enumerate(group)
        ],
    }


def _facts(rollout: Rollout) -> dict[str, Any]:
    values, shade, numbers = shading(rollout), None, [None] * 4
    if values is not None:
        values = values[np.isfinite(values)].astype(np.float64)
    if values is not None and len(values):
        shade = "weights" if rollout.weights else "advantages"
        numbers = [number(float(value)) for value in (values.min(), values.mean(), values.max(), values.std())]
    return {
        "sample": rollout.sample,
        "correct": rollout.correct,
        "reward": number(rollout.reward),
        "advantage": number(rollout.advantage),
        "length": len(rollout.tokens),
        "truncated": rollout.truncated,
        "shade": shade,
        **dict(zip(("low", "mean", "high", "spread"), numbers, strict=True)),
    }


def block(group: Sequence[Rollout]) -> dict[str, Any]:
    """Return a group's prompt, label and the tokens, spans and heatmaps of its rollouts, as JSON values."""
    return {"prompt": group[0].prompt, "label": group[0].label, "rollouts": [_contents(rollout) for rollout in group]}


def _contents(rollout: Rollout) -> dict[str, Any]:
    return {
        "tokens": rollout.tokens,
        "weights": floats(rollout.weights),
        "advantages": floats(rollout.token_advantages),
        "starts": rollout.span_starts or [],
        "distances": [number(value) for value in rollout.span_distances or []],
        "nearestSample": rollout.nearest_sample or [],
        "nearestSpan": rollout.nearest_span or [],
        "heatSpans": rollout.heatmap_spans or [],
        "heat": {heatmap.other: matrix(heatmap) for heatmap in rollout.heatmaps or []},
        "answer": rollout.answer_start,
        "error": rollout.first_error,
    }


def number(value: float | None) -> float | None:
    """Round to six significant digits; None for a number that is not finite, since JSON has no infinity."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def floats(values: Sequence[float] | None) -> str | None:
    """Return base64 of little-endian float32; None without values."""
    return None if not values else base64.b64encode(np.array(values, dtype="<f4").tobytes()).decode()


def matrix(heatmap: Heatmap) -> dict[str, Any]:
    """Return `low`, `step` and base64 of uint16 `codes`: value = low + step * code, or STEPS + 1 if not finite."""
    values = np.array(heatmap.values, dtype=np.float64)
    finite = np.isfinite(values)
    low, high = (float(values[finite].min()), float(values[finite].max())) if finite.any() else (0.0, 0.0)
    step = (high - low) / STEPS
    codes = np.full(len(values), STEPS + 1, dtype="<u2")
    codes[finite] = np.rint((values[finite] - low) / step) if step else 0
    return {"low": low, "step": step, "codes": base64.b64encode(codes.tobytes()).decode()}


def to_json(values: object) -> str:
    """Return JSON that nothing in a `<script>` can end or open: ASCII without <, > and &."""
    return json.dumps(values, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)
