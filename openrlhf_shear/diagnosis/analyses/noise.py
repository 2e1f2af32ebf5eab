"""Section 4 and appendix C: does the distance to the opposing side exceed that of two samples of one kind?

    eta      = E[W] of two spans of the same population; here the mean distance to rollouts of the same outcome
    D(S)     >= E[W] - eta and <= E[W] + eta, of the populations of a span and of the opposing side
    theorem  D(S) > 2 eta, which holds where E[W] > 3 eta
    McDiarmid: each empirical span is further than on average + u from its population with a chance of at most
             risk = exp(-n u^2 / (2 M^2)), so u = M sqrt(2 ln(1 / risk) / n); both sides: 2 u

The theory assumes independent tokens and one pair of spans. Tokens of a response depend on each other. Both distances
are minima over spans, which lowers them alike only where the numbers of rollouts are equal.
"""

from collections.abc import Mapping
from math import log, sqrt

import numpy as np
import pandas

from openrlhf_shear.diagnosis.analyses.lags import known_errors
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, Quantity
from openrlhf_shear.report.rows import Rows, ratio


def noise_floor(
    prefixes: pandas.DataFrame,
    first_errors: Mapping[tuple[str, int], int],
    window: int,
    largest_norm: float,
    bootstrap: Bootstrap,
    risk: float = 0.05,
) -> Analysis:
    """Compare distances to the opposing side with distances to the same side; rows are prefixes that have both.

    eta, opposing: mean distances, in units of nbar.
    ratio_low, ratio_high: of D(S) to eta, at least and at most, by the means; the theorem needs 2.
    separated: the share of prefixes with W > 3 eta.
    sure: the share with W > 3 eta + 2 u, with McDiarmid's u at `risk` a side.
    before, after: mean W of incorrect rollouts' windows that end before the first error and that begin after it.
    same_before, same_after: mean distances of these windows to the same side.
    deviation: u, in units of nbar.
    largest_norm: M.
    risk: as given.

    Args:
        first_errors: (problem, sample) -> token, of rollouts that err.
        window: n, tokens.
        largest_norm: M, of a token, in units of nbar: at least 1.
    """
    prefixes = prefixes[np.isfinite(prefixes["same_distance"])]
    rows = Rows(prefixes)
    opposing, same = rows["distance"], rows["same_distance"]
    u = largest_norm * sqrt(2 * log(1 / risk) / window)
    error = np.where(rows.correct, np.nan, known_errors(prefixes, first_errors))
    end = rows["position"]
    sides = {"before": end <= error, "after": end - window > error}

    def numbers(weights: np.ndarray) -> dict[str, float]:
        w = weights[rows.problems]
        eta, mean = ratio(w @ same, w.sum()), ratio(w @ opposing, w.sum())
        values = {"eta": eta, "opposing": mean}
        values |= {"ratio_low": ratio(mean - eta, eta), "ratio_high": ratio(mean + eta, eta)}
        values |= {"separated": ratio(w @ (opposing > 3 * eta), w.sum())}
        values |= {"sure": ratio(w @ (opposing > 3 * eta + 2 * u), w.sum())}
        for name, part in sides.items():
            values |= {name: ratio(w @ (part * opposing), w @ part), f"same_{name}": ratio(w @ (part * same), w @ part)}
        return values

    titles = {
        "eta": "Noise: mean distance to the same outcome (eta)",
        "opposing": "Noise: mean distance to the other outcome, of the same prefixes",
        "ratio_low": "Noise: D(S) / eta, at least (the theorem needs 2)",
        "ratio_high": "Noise: D(S) / eta, at most",
        "separated": "Noise: prefixes with W > 3 eta",
        "sure": f"Noise: prefixes with W > 3 eta + 2 u, McDiarmid's u = {u:.3f}",
        "before": "Noise: mean distance of windows before the first error",
        "same_before": "... to the same outcome, before",
        "after": "Noise: mean distance of windows after the first error",
        "same_after": "... to the same outcome, after",
    }
    parts = {name: part for side, part in sides.items() for name in (side, f"same_{side}")}
    quantities = [
        Quantity(
            name,
            lambda found, name=name: found[name],
            rows.counts(parts.get(name, rows.every)),
            "prefixes with a distance to the same outcome",
            1.0 if name in ("separated", "sure") else None,
            what=what,
        )
        for name, what in titles.items()
    ]
    estimates = bootstrap.estimates(quantities, numbers)
    return Analysis({**estimates, "deviation": u, "largest_norm": largest_norm, "risk": risk}, estimates.numbers)
