"""What goes into the page: an index of all rollouts, read at once, a block for each group, read when it is opened, and
the colours of weights and distances.

Numbers of tokens go as base64 of little-endian float32, those of heatmaps as uint16 steps between the smallest and the
largest value of the pair: the error is at most half a step, 1/131068 of that range.
"""

import base64
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from openrlhf_shear.rollouts.record import Heatmap, Rollout, by_group, is_mixed

# From the page's paper to burnt orange, even steps of OKLab lightness. One hue whose lightness only falls (in dark
# mode: rises) reads the same with every colour blindness. The first LEVELS carry text, at a contrast of 5.3 at least;
# heatmaps carry none and go on to the end.
LEVELS = 10
LIGHT = (
    *("#fffaf0", "#fef1da", "#fee8c4", "#fddead", "#fcd596", "#f9c880", "#f5b76d", "#f0a659", "#eb9444", "#e5832a"),
    *("#ca6b1f", "#b05414", "#943f0e", "#762f0b", "#5a1f08"),
)
DARK = (
    *("#1d2026", "#272424", "#312822", "#3b2c1f", "#45301b", "#513518", "#5f3c17", "#6d4215", "#7b4812", "#8a4f0c"),
    *("#a96619", "#c97e25", "#e19a48", "#f1b976", "#ffd9a0"),
)
STEPS = 65534  # of a heatmap's range; the code above stands for a value that is not finite
_ESCAPES = {ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&"}


def css() -> str:
    """`--w0`, `--w1`, ... of the reader's scheme, and the classes `.w0`, `.w1`, ... of shaded text."""

    def root(colours: tuple[str, ...]) -> str:
        return ":root {" + "".join(f" --w{i}: {colour};" for i, colour in enumerate(colours)) + " }\n"

    classes = "".join(f".w{i} {{ background: var(--w{i}); }}\n" for i in range(LEVELS))
    return root(LIGHT) + "@media (prefers-color-scheme: dark) { " + root(DARK) + "}\n" + classes


def group_rollouts(rollouts: Sequence[Rollout], limit: int | None = None) -> list[list[Rollout]]:
    """The rollouts of each group, by `sample`; groups in the order of the file, at most `limit` of them."""
    groups = list(by_group(rollouts).values())[:limit]
    return [sorted(group, key=lambda rollout: rollout.sample) for group in groups]


def shading(rollout: Rollout) -> np.ndarray | None:
    """(T,) what tokens are shaded by: the weights, else the sizes of the tokens' own advantages, else None."""
    if rollout.weights:
        return np.array(rollout.weights, dtype=np.float32)
    if rollout.token_advantages:
        return np.abs(np.array(rollout.token_advantages, dtype=np.float32))
    return None


def index(groups: Sequence[Sequence[Rollout]], window: int | None) -> dict[str, Any]:
    """What the list shows, filters and sorts by, as JSON values: `window`, the `groups`, and `rows`: of each rollout
    which group and place in it, then its facts; `low`, `mean`, `high` and the standard deviation `spread` are of its
    shading.
    """
    return {
        "window": window,
        "groups": [{"name": group[0].group, "mixed": is_mixed(group)} for group in groups],
        "rows": [
            {"group": g, "place": place, **_facts(rollout)}
            for g, group in enumerate(groups)
            for place, rollout in enumerate(group)
        ],
    }


def _facts(rollout: Rollout) -> dict[str, Any]:
    values, shade, numbers = shading(rollout), None, [None] * 4
    if values is not None:
        shade, values = "weights" if rollout.weights else "advantages", values.astype(np.float64)
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
    """A group's prompt and the tokens, spans and heatmaps of its rollouts, as JSON values."""
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
        "heat": {one.other: matrix(one) for one in rollout.heatmaps or []},
        "answer": rollout.answer_start,
        "error": rollout.first_error,
    }


def number(value: float | None) -> float | None:
    """Six significant digits; None where it is not finite, since JSON has no infinity."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def floats(values: Sequence[float] | None) -> str | None:
    return None if not values else base64.b64encode(np.array(values, dtype="<f4").tobytes()).decode()


def matrix(heatmap: Heatmap) -> dict[str, Any]:
    values = np.array(heatmap.values, dtype=np.float64)
    finite = np.isfinite(values)
    low, high = (float(values[finite].min()), float(values[finite].max())) if finite.any() else (0.0, 0.0)
    step = (high - low) / STEPS
    codes = np.full(len(values), STEPS + 1, dtype="<u2")
    codes[finite] = np.rint((values[finite] - low) / step) if step else 0
    return {"low": low, "step": step, "codes": base64.b64encode(codes.tobytes()).decode()}


def to_json(values: object) -> str:
    """JSON that nothing in a `<script>` can end or open: without <, > and &, and ASCII only."""
    return json.dumps(values, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)
