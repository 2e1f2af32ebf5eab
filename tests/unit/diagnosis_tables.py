"""Synthetic tables of the diagnosis, with answers that are known."""

import numpy as np
import pandas

from openrlhf_shear.diagnosis.text import TextControl, TextSpans
from openrlhf_shear.rollouts.record import Heatmap, Rollout

SETTINGS = {"model": "tiny", "dataset": "synthetic", "window": 4, "stride": 5, "completions": 16}
SETTINGS["samples_per_prompt"] = 8


def prefix_table(rows) -> pandas.DataFrame:
    """Return a table as `read_prefixes` does, from dicts; missing columns get defaults that no test depends on."""
    defaults = {"problem": "", "sample": 0, "correct": True, "position": 4, "tokens": 100, "distance": 0.0,
                "omega": 0.5, "completions": 16, "successes": 0, "truncated": 0,
                "same_distance": np.nan, "permuted_distance": np.nan}  # fmt: skip
    frame = pandas.DataFrame([{**defaults, **row} for row in rows], columns=list(defaults))
    frame = frame.astype({name: type(value) for name, value in defaults.items() if name != "problem"})
    frame["accuracy"] = frame["successes"] / frame["completions"]
    return frame.sort_values(["problem", "sample", "position"], ignore_index=True)


def drawn_prefixes(rng, problems=40, samples=4, positions=8, slope=0.0, gap=0.2, completions=16) -> pandas.DataFrame:
    """Prefixes every 5 tokens; `slope` is the change of the success rate per unit of distance, `gap` per outcome.

    Problems differ in both distance and success rate, so rows of one problem are not independent.
    """
    rows = []
    for problem in range(problems):
        level, shift = rng.uniform(0.35, 0.65), rng.normal(0, 0.1)
        for sample in range(samples):
            correct = sample % 2 == 0
            for step in range(positions):
                distance = abs(0.6 + shift + rng.normal(0, 0.15))
                rate = np.clip(level + slope * (distance - 0.6) + (gap if correct else -gap), 0, 1)
                row = {"problem": f"p{problem:03d}", "sample": sample, "correct": correct, "position": 4 + 5 * step}
                row |= {"completions": completions, "successes": rng.binomial(completions, rate)}
                rows.append(row | {"distance": distance})
    return prefix_table(rows)


def rollout(group="g0", sample=0, correct=True, weights=None, **given) -> Rollout:
    """A rollout with a token for each weight, or with two."""
    tokens = len(weights) if weights is not None else 2
    made = {"prompt": "1+1=", "label": "2", "advantage": None, "truncated": False, "weights": weights}
    made |= {"reward": None if correct is None else float(correct), "tokens": ["x"] * tokens, "token_ids": [0] * tokens}
    return Rollout(group=group, sample=sample, correct=correct, **made | given)


def drawn_rollouts(rng, groups=30, samples=8, tokens=40, jump=0.5) -> list[Rollout]:
    """Groups of mixed and unmixed outcomes; weights rise along a rollout, and by `jump` at the first error."""
    made = []
    for group in range(groups):
        correct = rng.random(samples) < rng.random()
        mixed = 0 < correct.sum() < samples
        for sample in range(samples):
            error = None if correct[sample] else int(rng.integers(1, tokens))
            weights = np.linspace(0.3, 0.6, tokens) + rng.normal(0, 0.05, tokens)
            if error is not None:
                weights[error:] += jump
            starts, later = list(range(0, tokens, 5)), range(sample + 1, samples)
            heatmaps = [Heatmap(other, rng.uniform(0.2, 0.9, 64).tolist()) for other in later]
            spans = {"weights": weights.tolist(), "span_starts": starts, "span_distances": weights[::5].tolist()}
            spans |= dict.fromkeys(("nearest_sample", "nearest_span"), [0] * len(starts))
            spans |= {"heatmap_spans": list(range(len(starts))), "heatmaps": heatmaps}
            texts = {"tokens": ["x"] * tokens, "token_ids": [0] * tokens, "first_error": error}
            made.append(rollout(f"p{group:03d}", sample, bool(correct[sample]), **texts | (spans if mixed else {})))
    return made


def spans_of(prefixes: pandas.DataFrame) -> list[Rollout]:
    """The rollouts of `drawn_prefixes`, with a span for each prefix and weights of its distance."""
    made = []
    for (problem, sample), own in prefixes.groupby(["problem", "sample"]):
        distances = own["distance"].tolist()
        spans = {"span_starts": [end - 4 for end in own["position"]], "span_distances": distances}
        made.append(
            rollout(problem, int(sample), bool(own["correct"].iloc[0]), np.repeat(distances, 5).tolist(), **spans)
        )
    return made


def text_of(prefixes: pandas.DataFrame, ngram: int = 3) -> TextControl:
    """A text control whose distances are those of these prefixes, which may differ from the hidden states'."""
    rollouts = spans_of(prefixes)
    spans = [TextSpans(r.group, r.sample, r.weights, r.span_distances, r.span_distances) for r in rollouts]
    return TextControl(ngram, {(each.problem, each.sample): each for each in spans})
