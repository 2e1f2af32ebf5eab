"""The columns of `Rollout` that others give: from a response's tokens, and from a rule's evidence."""

from __future__ import annotations

from collections.abc import Sequence

from openrlhf_shear.arithmetic.arithmetic import response_text
from openrlhf_shear.arithmetic.problems import parse_problem
from openrlhf_shear.arithmetic.solutions import check
from openrlhf_shear.credit.evidence import SpanEvidence
from openrlhf_shear.rollouts.answers import answer_start
from openrlhf_shear.rollouts.record import Heatmap
from openrlhf_shear.rollouts.tokens import token_at, token_texts

SPAN_COLUMNS = ("span_starts", "span_distances", "nearest_sample", "nearest_span", "heatmap_spans", "heatmaps")


def token_columns(tokenizer, prompt: str, ids: Sequence[int]) -> dict:
    """The token columns of a rollout, with where its final answer begins and where it first goes wrong.

    Args:
        prompt: as the policy read it.
        ids: (T,) of the response.
    """
    tokens = token_texts(tokenizer, ids)
    return {
        "tokens": tokens,
        "token_ids": list(ids),
        "answer_start": answer_start(tokens),
        "first_error": first_error_token(prompt, tokens),
    }


def first_error_token(prompt: str, tokens: Sequence[str]) -> int | None:
    """The first wrong token of a response to a problem of the built-in task.

    None if nothing is wrong, if a right beginning was cut off before its end, or if the prompt is of another task.
    """
    try:
        problem = parse_problem(prompt)
    except ValueError:
        return None
    error = check(problem, response_text("".join(tokens))).first_error
    return None if error is None else token_at(tokens, error)


def span_columns(evidence: SpanEvidence, samples: Sequence[int]) -> dict:
    """The span columns of a rollout; `samples` are those of the group's rollouts, as the evidence has them."""
    return {
        "span_starts": evidence.span_starts.tolist(),
        "span_distances": evidence.span_distances.tolist(),
        "nearest_sample": [samples[i] if i >= 0 else -1 for i in evidence.nearest_sample.tolist()],
        "nearest_span": evidence.nearest_span.tolist(),
        "heatmap_spans": evidence.heatmap_spans.tolist(),
        "heatmaps": [Heatmap(samples[j], values.flatten().tolist()) for j, values in sorted(evidence.heatmaps.items())],
    }
