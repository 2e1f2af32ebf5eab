"""Rows of the rollout table: columns from a response's tokens and a rule's evidence, and all rows of a step."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, groupby

import regex as re

from openrlhf_shear.credit.apply import TokenCredit
from openrlhf_shear.credit.rule import CONTROLS, GroupCredit, SpanEvidence
from openrlhf_shear.rewards.maths.answers import answer_place
from openrlhf_shear.rewards.responses import answer_of
from openrlhf_shear.rollouts.record import Heatmap, Rollout

_UNKNOWN = "\ufffd"  # the text of bytes that make no complete character
_LONGEST = 32  # after so many tokens that end in no character, their text is taken unfinished
_LONE_HASH = re.compile(r"#\s*[-+]?[0-9][0-9.,]*$")
_NUMBER = re.compile(r"[-+]?\$?[0-9](?:[0-9,.]*[0-9])?")
# A task's function of a prompt and a decoded response: the first wrong character; None if nothing is wrong, or if the
# prompt is of another task. A correct beginning that was cut off errs just beyond its end.
FirstError = Callable[[str, str], int | None]
CONTROL_COLUMNS = {name: f"{name}_distances" for name in CONTROLS}
SPAN_COLUMNS = ("span_starts", "span_distances", "nearest_sample", "nearest_span", "heatmap_spans", "heatmaps")
SPAN_COLUMNS += (*CONTROL_COLUMNS.values(), "largest_norm")


def token_texts(tokenizer, ids: Sequence[int]) -> list[str]:
    """Return (T,) texts of the tokens, special tokens included; joined, they are the decoded text.

    Byte-level tokenizers split rare characters over several tokens; such a character goes to the last of them. Other
    tokenizers drop the space before a token that is decoded alone.
    """

    def decode(part: Sequence[int]) -> str:
        return tokenizer.decode(part, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    ids, alone = list(ids), _alone(tokenizer)
    alone.update((token, decode([token])) for token in set(ids).difference(alone))
    texts, whole = [alone[token] for token in ids], decode(ids)
    if "".join(texts) == whole:
        return texts
    incomplete = [_UNKNOWN in text for text in texts]
    for is_incomplete, run in groupby(range(len(ids)), key=incomplete.__getitem__):
        if is_incomplete:
            part = list(run)
            texts[part[0] : part[-1] + 1] = _in_turn(ids[part[0] : part[-1] + 1], decode)
    return texts if "".join(texts) == whole else _in_turn(ids, decode)


@lru_cache(maxsize=4)
def _alone(tokenizer) -> dict[int, str]:
    """Return the texts of a tokenizer's tokens, decoded alone, as far as they are known; the caller adds others."""
    return {}


def _in_turn(ids: list[int], decode) -> list[str]:
    """Decode each token after those before it, a few at a time: the window starts one complete piece back."""
    texts: list[str] = []
    # the window's first token; the first token whose text is not out; the number of its characters that are out
    start = whole = sent = 0
    for end in range(1, len(ids) + 1):
        text = decode(ids[start:end])[len(decode(ids[start:whole])) :]
        cut = end - whole >= _LONGEST
        done = cut or not text.endswith(_UNKNOWN) or end == len(ids)
        ready = text if done else text.rstrip(_UNKNOWN)
        texts.append(ready[sent:])
        start, whole, sent = (end if cut else whole, end, 0) if done else (start, whole, len(ready))
    return texts


def token_at(tokens: Sequence[str], character: int) -> int | None:
    """Return the token that holds a character of the joined text; None beyond its end."""
    return next((i for i, end in enumerate(accumulate(map(len, tokens))) if end > character), None)


def answer_start(tokens: Sequence[str]) -> int | None:
    r"""Return the token in which the final answer begins, so that no window of a diagnosis contains it; None without
    an answer. `tokens` are the (T,) texts; joined, they are the response.

    A marked answer begins where the maths grader can first read it off (`answer_place`). Else it is a `#` and a number
    at the very end, or the last number behind any fenced program.
    """
    response = answer_of("".join(tokens), "")
    at = answer_place(response)
    at = _unmarked(response) if at is None else at
    return None if at is None else token_at(tokens, at)


def _unmarked(response: str) -> int | None:
    if lone := _LONE_HASH.search(response):
        return lone.start()
    *_, last = [None, *_NUMBER.finditer(response, response.rfind("```") + 1)]
    return last and last.start()


def token_columns(tokenizer, prompt: str, ids: Sequence[int], first_error: FirstError | None = None) -> dict:
    """Return the token columns of a rollout, with the start of its final answer and its first error.

    Args:
        prompt: as the policy read it.
        ids: (T,) tokens of the response.
        first_error: the task's, if its errors are known.
    """
    tokens = token_texts(tokenizer, ids)
    return {
        "tokens": tokens,
        "token_ids": list(ids),
        "answer_start": answer_start(tokens),
        "first_error": first_error_token(prompt, tokens, first_error) if first_error else None,
    }


def first_error_token(prompt: str, tokens: Sequence[str], first_error: FirstError) -> int | None:
    """Return the token of a response's first error; None without one, or if it lies beyond the end."""
    error = first_error(prompt, "".join(tokens))
    return None if error is None else token_at(tokens, error)


def span_columns(evidence: SpanEvidence, samples: Sequence[int]) -> dict:
    """Return the span columns of a rollout; `samples` are those of the group's rollouts, in the evidence's order."""
    return {
        "span_starts": evidence.span_starts.tolist(),
        "span_distances": evidence.span_distances.tolist(),
        "nearest_sample": [samples[i] if i >= 0 else -1 for i in evidence.nearest_sample.tolist()],
        "nearest_span": evidence.nearest_span.tolist(),
        "heatmap_spans": evidence.heatmap_spans.tolist(),
        "heatmaps": [Heatmap(samples[j], values.flatten().tolist()) for j, values in sorted(evidence.heatmaps.items())],
        **{CONTROL_COLUMNS[name]: distances.tolist() for name, distances in evidence.controls.items()},
        "largest_norm": evidence.largest_norm,
    }


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
