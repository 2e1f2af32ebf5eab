"""Does a rule's credit rank the tokens of a rollout as their true advantages do, and does that predict its gain?"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from openrlhf_shear.credit.baselines import group_advantages
from openrlhf_shear.lab.placement import SEED, Known, known_rollouts, traces
from openrlhf_shear.lab.rollouts import Rollouts
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.values import Values, prefix_values
from openrlhf_shear.lab.variants import Variant
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap, Quantity, interval
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.report.rows import problem_codes, ratio, spearman_of

VINE = 8  # continuations of the second values
Rows = Sequence[Sequence[float]]  # of each rollout's tokens


@dataclass(frozen=True)
class Truth:
    """The fixed rollouts of `placement.known_rollouts`, with their true advantages."""

    known: Known
    values: Values
    vine: Values  # the same with `VINE` continuations, of other random numbers


def known_truth(settings: LabSettings, start: Path, continuations: int) -> Truth:
    """Return the start policy's rollouts of held-out problems, and the values of their prefixes under that policy."""
    known = known_rollouts(settings, start)
    inputs = known.models.policy, known.models.task, known.problems, known.rollouts, known.reading.log_probs
    values, vine = (prefix_values(*inputs, number, SEED + 1 + i) for i, number in enumerate((continuations, VINE)))
    return Truth(known, values, vine)


def rule_alignment(settings: LabSettings, variant: Variant, truth: Truth, bootstrap: Bootstrap) -> Analysis:
    """Return the `alignment` of a rule's token advantages. Raises CreditRuleError where the rule failed."""
    bases = _bases(truth.known.rollouts)
    mixed = [i for i, base in enumerate(bases) if base]
    found = traces(settings, variant, truth.known)
    credit = [(bases[i] * np.array(trace.weights)).tolist() for i, trace in zip(mixed, found, strict=True)]
    return _aligned(truth, mixed, credit, bootstrap)


def vine_alignment(truth: Truth, bootstrap: Bootstrap) -> Analysis:
    """Return the `alignment` of the second values' advantages: how well the truth repeats itself.

    No rule can have them. Like the truth they are exact where the simulator knows, and 0 where nothing was decided.
    """
    mixed = [i for i, base in enumerate(_bases(truth.known.rollouts)) if base]
    return _aligned(truth, mixed, [truth.vine.advantages[i].tolist() for i in mixed], bootstrap)


def _bases(rollouts: Rollouts) -> list[float]:
    return group_advantages(torch.tensor(rollouts.correct, dtype=torch.float32), rollouts.group_size).tolist()


def _aligned(truth: Truth, mixed: Sequence[int], credit: Rows, bootstrap: Bootstrap) -> Analysis:
    advantages = [truth.values.advantages[i].tolist() for i in mixed]
    groups = [str(i // truth.known.rollouts.group_size) for i in mixed]
    return alignment(advantages, credit, groups, [truth.known.rollouts.correct[i] for i in mixed], bootstrap)


def alignment(
    advantages: Rows, credit: Rows, groups: Sequence[str], correct: Sequence[bool], bootstrap: Bootstrap
) -> Analysis:
    """Return Spearman's rank correlation of credit and true advantages: means over rollouts, intervals over problems.

    correlation: over all rollouts; correlation_correct, correlation_incorrect: over those alone.

    A rollout whose true advantages are all equal has nothing to rank, and is left out. Credit that is constant in a
    rollout ranks nothing and counts as 0: `uniform` has 0 everywhere.

    Args:
        advantages, credit: (T_i,) of each rollout of the groups with both outcomes.
    """
    rhos = np.array([_rho(*row) for row in zip(advantages, credit, strict=True)], dtype=float)
    problems, number = problem_codes(groups)
    right = np.array(correct, dtype=bool)
    quantities = []
    for end, part in {"": right | ~right, "_correct": right, "_incorrect": ~right}.items():
        used = part & np.isfinite(rhos)
        rows = np.bincount(problems[used], minlength=number)
        total = np.bincount(problems[used], rhos[used], number)
        mean = partial(_mean, total=total, rows=rows)
        needs = "a rollout in which the true advantages of two tokens differ"
        quantities.append(Quantity(f"correlation{end}", mean, rows, needs, 2.0))
    return bootstrap.estimates(quantities)


def _mean(weights: np.ndarray, total: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return ratio(weights @ total, weights @ rows)


def _rho(advantages: Sequence[float], credit: Sequence[float]) -> float:
    truth, credits = np.array(advantages, dtype=float), np.array(credit, dtype=float)
    if len(truth) < 3 or np.ptp(truth) == 0:
        return np.nan
    return 0.0 if np.ptp(credits) == 0 else spearman_of(truth, credits)


def prediction(
    correlations: Mapping[str, float], gains: Mapping[str, Mapping[int, float]], bootstrap: Bootstrap
) -> Estimate:
    """Return Spearman's correlation, over rules, of the rank correlation with the gain in training.

    The interval is over rules and seeds: seeds that the same rules have are drawn together, so that pairs stay pairs.

    Args:
        correlations: by rule.
        gains: rule -> seed -> difference to the baseline at that seed.
    """
    rules = [rule for rule in correlations if gains.get(rule)]
    blocks: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for seed in sorted({seed for rule in rules for seed in gains[rule]}):
        blocks[tuple(rule for rule in rules if seed in gains[rule])].append(seed)
    x = np.array([correlations[rule] for rule in rules], dtype=float)

    def rho(times: Mapping[int, float], chosen: Sequence[int] | slice = slice(None)) -> float:
        weights = [np.array([times[seed] for seed in gains[rule]]) for rule in rules]
        sums = [float(np.dot(times, [*gains[rule].values()])) for rule, times in zip(rules, weights, strict=True)]
        gain = ratio(np.array(sums), np.array([times.sum() for times in weights]))
        return spearman_of(x[chosen], gain[chosen])

    seeds = [seed for block in blocks.values() for seed in block]
    value, low, high = rho(dict.fromkeys(seeds, 1.0)) if rules else np.nan, None, None
    if not np.isfinite(value):
        warning = "not defined: it needs three rules whose correlations and whose gains differ"
        return Estimate(None, None, None, len(seeds), len(rules), warning=warning)
    draws = [Bootstrap(bootstrap.resamples, bootstrap.seed + i).draws(len(b)) for i, b in enumerate(blocks.values())]
    chosen = np.random.default_rng(bootstrap.seed).integers(len(rules), size=(bootstrap.resamples, len(rules)))
    drawn = np.array(
        [
            rho(dict(zip(seeds, np.concatenate(each), strict=True)), rows)
            for *each, rows in zip(*draws, chosen, strict=True)
        ]
    )
    drawn = drawn[np.isfinite(drawn)]
    if len(drawn):
        low, high = interval(drawn)
    return Estimate(float(value), low, high, len(seeds), len(rules))
