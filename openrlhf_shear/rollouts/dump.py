"""Rows of the rollout table from a training step, with the results of its credit rule."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from openrlhf_shear.credit.apply import TokenCredit
from openrlhf_shear.credit.evidence import SpanEvidence
from openrlhf_shear.credit.rule import GroupCredit
from openrlhf_shear.rollouts.columns import FirstError, span_columns, token_columns
from openrlhf_shear.rollouts.record import Rollout

_LABEL_CHARACTERS = 2000  # longer labels are cut: that of a programming problem holds its tests


@dataclass(frozen=True)
class StepRollouts:
    """A trainer's data of a step. `tokens` is by rollout, its index within the step."""

    # OpenRLHF's batches as the update gets them: `sequences` (B, S), `action_mask` and `advantages` (B, A), `truncated`
    # (B,), and lists `index`, `prompts`, `labels`. The A columns are the last A of the S
    experiences: Sequence
    groups: Sequence[GroupCredit]  # every group of the step
    tokens: Mapping[int, TokenCredit]
    evidence_seconds: float  # that the rule spent on its evidence, on the slowest rank


def rollout_rows(
    step: StepRollouts, tokenizer, group_size: int, first_error: FirstError | None = None
) -> Iterator[Rollout]:
    """Yield a row for each rollout, in the order of the step's prompts; `first_error` is the task's, if known.

    Rows hold response tokens only: neither the prompt's, nor those of an environment between two turns.
    """
    judged = {}  # rollout -> (reward, correct)
    for group in step.groups:
        judged |= zip(group.rollouts, zip(group.rewards, group.correct, strict=True), strict=True)
    spans = _span_columns(step.groups, group_size)
    places = {i: (experience, row) for experience in step.experiences for row, i in enumerate(experience.index)}
    for i, (experience, row) in sorted(places.items(), key=lambda item: item[0]):
        offset = experience.sequences.shape[1] - experience.action_mask.shape[1]
        mask = experience.action_mask[row].bool()
        ids = experience.sequences[row, offset:][mask].tolist()
        prompt = _text(experience.prompts[row])
        credit, (reward, correct) = step.tokens[i], judged[i]
        failed = math.isnan(reward)
        yield Rollout(
            group=str(i // group_size),
            sample=i % group_size,
            prompt=prompt,
            label=_label(experience.labels[row]),
            correct=correct,
            reward=None if failed else reward,
            advantage=None if failed or not ids else credit.base[0].item(),
            truncated=bool(experience.truncated[row]),
            weights=None if credit.weights is None else credit.weights.tolist(),
            token_advantages=experience.advantages[row, mask].tolist(),
            **token_columns(tokenizer, prompt, ids, first_error),
            **spans.get(i, {}),
        )


def _span_columns(groups: Sequence[GroupCredit], group_size: int) -> dict[int, dict]:
    """Return the span columns of every rollout whose rule gave evidence."""
    columns = {}
    for group in groups:
        shown: Sequence[SpanEvidence] = group.evidence.rollouts if group.evidence is not None else ()
        samples = [i % group_size for i in group.rollouts]
        columns |= {i: span_columns(spans, samples) for i, spans in zip(group.rollouts, shown, strict=False)}
    return columns


def _label(label) -> str:
    text = "" if label is None else _text(str(label))
    return text if len(text) <= _LABEL_CHARACTERS else text[:_LABEL_CHARACTERS] + " ..."


def _text(text: str) -> str:
    """Replace lone surrogates, which JSON can hold and a file cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")
