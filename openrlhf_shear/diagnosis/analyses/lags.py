"""When does the distance change? Changes of accuracy and of distance are compared at lags of 0 to w / s strides.

In the stride where success drops, a backward window holds only the few tokens since the error. A window later it holds
nothing else.

    dW_{t+l} = W(s_{t+l}) - W(s_{t+l-1})     l strides after dAcc_t, or after the stride with the first error
"""

from collections.abc import Mapping
from functools import partial

import numpy as np
import pandas

from openrlhf_shear.diagnosis.analyses.trend import stride_table
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, parts
from openrlhf_shear.report.rows import Rows

BEFORE = 1  # strides before an error, as a check: nothing has happened yet


def lagged_changes(
    prefixes: pandas.DataFrame,
    first_errors: Mapping[tuple[str, int], int],
    window: int,
    stride: int,
    completions: int,
    bootstrap: Bootstrap,
) -> Analysis:
    """Return the distance's changes by lag.

    lags: `lag`, in strides, and `rho` of dAcc_t and dW_{t+lag} over events (|dAcc_t| >= 1 / completions). Ranks are
        taken among events at the same position. Lag 0 is the paper's association, at fixed position.
    errors: an event study by `lag` of a change, from -1; lag 0 is the stride with the rollout's first wrong token.
        `distance` is the mean change of incorrect rollouts minus that of the group's correct rollouts at the same
        position; `accuracy` is the same of accuracy. Rows are changes that have such a control.

    Args:
        first_errors: (problem, sample) -> token, of rollouts that err. A correct rollout in it is no control.
        window, stride: tokens.
        completions: requested for each prefix.
    """
    changes = stride_table(prefixes, stride, completions)
    last = -(-window // stride)
    lags = range(last + 1)
    of_lag = [_later(changes[changes["event"]], changes, lag * stride) for lag in lags]
    columns = ("d_accuracy", "d_later")
    rhos = []
    for lag, frame in zip(lags, of_lag, strict=True):
        rows = Rows(frame)
        needs, what = "changes that differ", f"Local association at fixed position, lag {lag}"
        quantities = [rows.rho("rho", rows.every, rows.strata("position"), columns=columns, needs=needs, what=what)]
        rhos.append(bootstrap.estimates(quantities))
    errors = _around_errors(changes, first_errors, stride, range(-BEFORE, last + 1), bootstrap)
    numbers = {what: estimate for analysis in (*rhos, errors) for what, estimate in analysis.numbers.items()}
    studied = parts(lag=range(-BEFORE, last + 1), distance=errors.distance, accuracy=errors.accuracy)
    return Analysis({"lags": parts(lag=lags, rho=[analysis.rho for analysis in rhos]), "errors": studied}, numbers)


def _later(events: pandas.DataFrame, changes: pandas.DataFrame, tokens: int) -> pandas.DataFrame:
    """Return events with the change of distance `tokens` later in the same rollout; others are dropped."""
    later = changes[["problem", "sample", "position", "d_distance"]].rename(columns={"d_distance": "d_later"})
    later = later.assign(position=later["position"] - tokens)
    return events.merge(later, on=["problem", "sample", "position"])


def known_errors(frame: pandas.DataFrame, first_errors: Mapping[tuple[str, int], int]) -> np.ndarray:
    """Return (N,) the first error of each row's rollout; NaN without an error."""
    rollouts = zip(frame["problem"], frame["sample"], strict=True)
    return np.array([first_errors.get(key, np.nan) for key in rollouts], dtype=float)


def _around_errors(
    changes: pandas.DataFrame,
    first_errors: Mapping[tuple[str, int], int],
    stride: int,
    lags: range,
    bootstrap: Bootstrap,
) -> Analysis:
    error = known_errors(changes, first_errors)
    at, what = ["problem", "position"], ["d_accuracy", "d_distance"]
    clean = changes[changes["correct"].to_numpy(dtype=bool) & np.isnan(error)]
    control = clean.groupby(at)[what].mean()
    # the change that ends at a position p covers the tokens p - s to p - 1
    lag = np.floor((changes["position"].to_numpy() - 1 - error) / stride)
    studied = ~changes["correct"].to_numpy(dtype=bool) & (lag >= lags.start) & (lag < lags.stop)
    own = changes[studied].assign(lag=lag[studied].astype(int) - lags.start).merge(control, on=at, suffixes=("", "_c"))
    for name in what:
        own[name] -= own[f"{name}_c"]
    titles = [f"First error: change of distance over correct rollouts', lag {lag}" for lag in lags]
    of = partial(Rows(own).means, cells=own["lag"].to_numpy(), n=len(lags), needs="a change of both outcomes there")
    return bootstrap.estimates([of("distance", "d_distance", what=titles), of("accuracy", "d_accuracy", span=2.0)])
