"""Where a rule puts the credit: its weights on fixed rollouts of the start policy, whose errors are known.

This adds two measures to the diagnosis' (`first_errors`). First, tokens of correct and incorrect rollouts at the same
index may differ by their rollout rather than by being wrong. So the AUC is also taken within the incorrect rollouts of
a group. Second, the AUC says little of a rule that picks few tokens. So the share of its blame near the error is
measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from openrlhf_shear.credit.checks import checked_advantages
from openrlhf_shear.credit.rule import UpdateRule
from openrlhf_shear.lab.credit import credited, traced
from openrlhf_shear.lab.policy import Policy, Reading
from openrlhf_shear.lab.rollouts import Models, Rollouts, further_inputs, sample
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.tasks import Problem, task_of
from openrlhf_shear.lab.variants import Variant
from openrlhf_shear.report.bootstrap import Analysis, Bootstrap
from openrlhf_shear.report.tables import Table
from openrlhf_shear.rollouts.localisation import (
    PAPER_LAST_FIRST,
    Trace,
    contrast,
    first_errors,
    measurable,
    rollout_means,
    share,
    tokens_auc,
)

SEED = 1  # differs from the seed of the final accuracy's problems
RADIUS = 8  # tokens on both sides of the first error in profiles
NEAR = 1  # tokens on both sides of the first error in shares
HEADER = (
    *("Rule", "AUC after/before", "Same split of correct rollouts", "Random split", "Same index, all rollouts"),
    *("Same index, incorrect of a group", "Share within 1 token", "Largest within 1 token", "A random token"),
    *("Last over first quarter", "Incorrect over correct", "Rollouts"),
)
NOTES = (
    "AUC of the token weights of incorrect rollouts from the first error on against those before it, with 95% "
    "bootstrap intervals over problems; 0.5 tells nothing. Weights that merely rise along a rollout have a large AUC "
    "for any split, so compare with the two splits beside it.",
    "Same index: tokens already wrong against tokens still right at that index of other rollouts. Over all rollouts, a "
    "rule that scales correct and incorrect ones apart moves it wherever the credit goes; over incorrect rollouts of "
    "the same group it does not. A rule that leaves correct rollouts alone has 0.5 at their split by construction.",
    "Share within 1 token: the part of an incorrect rollout's credit on its first wrong token and the two neighbours. "
    "Beside it stand the chance that a largest weight is there and the chance that a random token is.",
    "Last over first quarter: mean weights of the last and the first quarter of the tokens of all rollouts; SHEAR's "
    f"paper has {PAPER_LAST_FIRST:.2f} for distances. Incorrect over correct: mean weights of the rollouts. Equal "
    "weights have 1 in both.",
)


@dataclass(frozen=True)
class Known:
    """Fixed rollouts of held-out problems, and the start policy's reading of them with all states."""

    problems: Sequence[Problem]
    rollouts: Rollouts
    reading: Reading
    models: Models  # the reference model is the policy itself


def start_models(settings: LabSettings, start: Path) -> Models:
    """Return the start policy's models."""
    policy = Policy(start, settings)
    return Models(policy, policy, task_of(settings))


def known_rollouts(settings: LabSettings, start: Path) -> Known:
    models = start_models(settings, start)
    policy, task = models.policy, models.task
    problems = task.problems(settings.placement_prompts, SEED, "heldout")
    rollouts = sample(policy, problems, settings.samples_per_prompt, settings, SEED)
    with torch.no_grad():
        reading = policy.read(rollouts.sequences, rollouts.mask, states=True, source_states=True)
    return Known(problems, rollouts, reading, models)


def traces(settings: LabSettings, variant: Variant, known: Known) -> list[Trace]:
    """Return the rollouts of mixed groups with the factor on each token's advantage, for any kind of rule.

    Raises CreditRuleError where the rule failed.
    """
    rule, rollouts, reading = variant.rule(settings), known.rollouts, known.reading
    further = further_inputs(rule.needs, known.models, known.problems, rollouts, SEED)
    credit = credited(rule, variant.control, rollouts, reading, SEED, further=further)
    advantages = credit.advantages
    if isinstance(rule, UpdateRule):
        before = torch.zeros_like(reading.log_probs)
        before[rollouts.mask] = torch.cat(advantages)
        seen = reading.entropies, reading.log_probs, reading.log_probs
        shaped, _ = checked_advantages(rule, before, rollouts.mask, *seen)
        advantages = [row[keep] for row, keep in zip(shaped, rollouts.mask, strict=True)]
    return traced(rollouts, credit.base, advantages)


def placement(traces: Sequence[Trace], bootstrap: Bootstrap) -> Analysis:
    """Return how well the weights of the rollouts of mixed groups find the first errors; intervals over problems.

    errors: `first_errors`: AUC and largest weight at the first error, with controls, and the profile.
    auc_incorrect: AUC of tokens at the same index of incorrect rollouts of the same group, already wrong against still
        right.
    contrast: `contrast`: late over early tokens, incorrect over correct rollouts.
    share: the part of an incorrect rollout's credit on its tokens within `NEAR` of the first error. Weights count by
        their size where signs differ; 0 for a rollout without credit.
    """
    wrong, incorrect = measurable(traces), [trace for trace in traces if not trace.correct]
    errors, auc = first_errors(traces, RADIUS, bootstrap), tokens_auc(incorrect, True, bootstrap, within_groups=True)
    near = rollout_means(wrong, {"share": np.array([_share(trace) for trace in wrong])}, {"share": 1.0}, bootstrap)
    return Analysis({"errors": errors, "auc_incorrect": auc, **near, "contrast": contrast(traces, bootstrap)})


def _share(trace: Trace) -> float:
    return share(trace.weights, range(max(trace.first_error - NEAR, 0), trace.first_error + NEAR + 1))


def placement_table(placements: Mapping[str, Analysis]) -> Table:
    """Return a row for each rule."""
    rows, warnings = [], []
    for rule, placed in placements.items():
        errors = placed.errors
        aucs = errors.auc, errors.auc_control, errors.auc_random, errors.auc_matched, placed.auc_incorrect
        shares = placed.share, errors.hit, errors.hit_chance
        contrasts = placed.contrast.last_first, placed.contrast.wrong_right
        cells = [estimate.text(".3f") for estimate in aucs] + [estimate.text(".1%") for estimate in shares]
        cells += [estimate.text(".2f") for estimate in contrasts]
        rows.append((rule, *cells, f"{errors.rollouts:,}"))
        checked = {"AUC": errors.auc, "share": placed.share, "same index": placed.auc_incorrect}
        warnings += [f"{rule}, {what}: {estimate.warning}" for what, estimate in checked.items() if estimate.warning]
    warning_notes = [f"Intervals that say little: {'; '.join(sorted(warnings))}."] if warnings else []
    return Table("Where the credit goes", HEADER, rows, [*NOTES, *warning_notes])
