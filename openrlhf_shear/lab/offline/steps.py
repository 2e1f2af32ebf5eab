"""Where a rule puts the weight of wrong responses: on the first wrong step, or elsewhere?

Legend: T tokens of a response, [a, b) the tokens of its first wrong step, w_t its weights by size.

- share: sum of w_t over [a, b), divided by the sum over all tokens
- lift: mean share over the wrong responses, divided by the mean of (b - a) / T; uniform weights have lift 1
- equal contrast: the lift of the weights' ranks in their response, ties shared. Every rule then has the same weights,
  in another order, and uniform weights stay uniform. The largest weights on the step have nearly 2 - (b - a) / T
- control: lift of the tokens at the same fraction of the group's right responses, from a / T to b / T
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import rankdata

from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, Quantity
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.rows import problem_codes, ratio
from openrlhf_shear.rollouts.localisation import (
    Trace,
    contrast,
    finite_mean,
    measurable,
    rollout_means,
    share,
    split_auc,
)

_NEEDS = "a wrong response with tokens before its first wrong step"


@dataclass(frozen=True)
class StepTrace(Trace):
    """The weights of a response, with its first wrong step; `first_error` is the step's first token."""

    error_end: int | None = None  # the token behind the step; None where no step is marked
    member: int = 0  # number of its group's evaluation: right responses are controls of the same member alone


def marked(traces: Iterable[StepTrace]) -> list[StepTrace]:
    """Return the wrong responses that count: with tokens before the first wrong step, and a token in it."""
    return [trace for trace in measurable(traces) if trace.error_end > trace.first_error]


def same_fraction(tokens: range, total: int, other: int) -> range:
    """Return the tokens of a response of `other` tokens at the same fraction as `tokens` of `total`; at least one.

    >>> same_fraction(range(2, 4), 4, 6), same_fraction(range(2, 3), 8, 2)
    (range(3, 6), range(0, 1))
    """
    start = min(tokens.start * other // total, other - 1)
    return range(start, max(-(-tokens.stop * other // total), start + 1))


def step_placement(traces: Sequence[StepTrace], bootstrap: Bootstrap) -> Analysis:
    """Return how the weights of a rule find the first wrong steps; intervals over problems.

    lift, lift_equal_contrast, lift_control: as in this module's legend.
    share, chance: the mean share, and the mean part of the tokens in the step.
    hit: the chance that a largest weight lies in the step; that of a random token is `chance`.
    auc: AUC of the tokens from the step on against those before; `auc_control`: the same split of right responses, and
        `auc_over_control` the mean difference, response by response.
    last_over_first: mean weight in the last quarter of each response over that in its first quarter.
    wrong_over_right: mean weight of wrong responses over that of right responses.
    """
    wrong, clean = marked(traces), defaultdict(list)
    for trace in traces:
        if trace.correct and trace.first_error is None:
            clean[trace.group, trace.member].append(trace)
    rows = [_row(trace, clean[trace.group, trace.member]) for trace in wrong]
    names = ("share", "chance", "hit", "auc", "auc_control", "share_control", "chance_control")
    columns = dict(zip(names, np.reshape(rows, (len(wrong), len(names))).T, strict=True))
    columns["auc_over_control"] = columns["auc"] - columns["auc_control"]
    control = _lift(wrong, columns.pop("share_control"), columns.pop("chance_control"), bootstrap)
    means = rollout_means(wrong, columns, dict.fromkeys(columns, 1.0) | {"auc_over_control": 2.0}, bootstrap)
    lifts = {"lift": lift(wrong, bootstrap), "lift_equal_contrast": lift(at_equal_contrast(wrong), bootstrap)}
    own = {**lifts, "lift_control": control}
    sizes = contrast([replace(trace, weights=np.abs(trace.weights).tolist()) for trace in traces], bootstrap)
    contrasts = {"last_over_first": sizes.last_first, "wrong_over_right": sizes.wrong_right}
    return Analysis({**own, **means, **contrasts, "responses": len(wrong)})


def at_equal_contrast(traces: Iterable[StepTrace]) -> list[StepTrace]:
    """Return the traces with the ranks of their weights, by size, in place of the weights.

    >>> at_equal_contrast([StepTrace("a", False, [0.2, -7, 0.2], 1, 2)])[0].weights
    [1.5, 3.0, 1.5]
    """
    return [replace(trace, weights=rankdata(np.abs(trace.weights)).tolist()) for trace in traces]


def lift(traces: Sequence[StepTrace], bootstrap: Bootstrap) -> Estimate:
    """Return the lift of the wrong responses among the traces."""
    wrong = marked(traces)
    shares, chances = (np.array([of(trace) for trace in wrong], dtype=float) for of in (_share, _chance))
    return _lift(wrong, shares, chances, bootstrap)


def _lift(traces: Sequence[Trace], shares: np.ndarray, chances: np.ndarray, bootstrap: Bootstrap) -> Estimate:
    problems, number = problem_codes([trace.group for trace in traces])
    finite = np.isfinite(shares) & np.isfinite(chances)
    above, below = (np.bincount(problems, np.where(finite, values, 0), number) for values in (shares, chances))
    rows = np.bincount(problems, finite, number)

    def value(weights: np.ndarray) -> np.ndarray:
        return ratio(weights @ above, weights @ below)

    return bootstrap.estimates([Quantity("lift", value, rows, _NEEDS)]).lift


def lift_differences(placed: Mapping[str, Sequence[StepTrace]], bootstrap: Bootstrap) -> dict[str, Analysis]:
    """Return, for each rule, its lift minus that of each other rule; resamples are paired by problem.

    All rules have traces of the same responses, in the same order.
    """
    wrong = {rule: marked(traces) for rule, traces in placed.items()}
    first = next(iter(wrong.values()))
    assert all([t.error_end for t in each] == [t.error_end for t in first] for each in wrong.values())
    problems, number = problem_codes([trace.group for trace in first])
    shares = {rule: np.bincount(problems, [_share(t) for t in each], number) for rule, each in wrong.items()}
    chances = np.bincount(problems, [_chance(trace) for trace in first], number)
    rows = np.bincount(problems, minlength=number)

    def over(rule: str, other: str) -> Quantity:
        more = shares[rule] - shares[other]
        return Quantity(other, lambda weights: ratio(weights @ more, weights @ chances), rows, _NEEDS)

    return {rule: bootstrap.estimates([over(rule, other) for other in shares if other != rule]) for rule in shares}


def _share(trace: StepTrace) -> float:
    return share(trace.weights, range(trace.first_error, trace.error_end))


def _chance(trace: StepTrace) -> float:
    return (trace.error_end - trace.first_error) / len(trace.weights)


def _row(trace: StepTrace, clean: Sequence[StepTrace]) -> list[float]:
    tokens, total = range(trace.first_error, trace.error_end), len(trace.weights)
    weights = np.asarray(trace.weights, dtype=float)
    largest = np.flatnonzero(weights == weights.max())
    hit = float(np.mean((largest >= tokens.start) & (largest < tokens.stop)))
    of_clean = [_control(other.weights, same_fraction(tokens, total, len(other.weights))) for other in clean]
    controls = [finite_mean([row[i] for row in of_clean]) for i in range(3)]  # AUC, share, chance
    return [_share(trace), _chance(trace), hit, split_auc(weights, tokens.start), *controls]


def _control(weights: Sequence[float], tokens: range) -> tuple[float, float, float]:
    return split_auc(weights, tokens.start), share(weights, tokens), len(tokens) / len(weights)
