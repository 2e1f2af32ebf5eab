"""`--shear.dump_rollouts_every`: all rollouts of a step, with what the credit rule made of them, in one file.

`python -m openrlhf_shear.cli.rollout_page` makes a page of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow
import torch
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.credit.evidence import SpanEvidence
from openrlhf_shear.credit.rule import GroupCredit
from openrlhf_shear.rollouts.columns import span_columns, token_columns
from openrlhf_shear.rollouts.record import Rollout, write_rollouts

logger = init_logger(__name__)
_LABEL_CHARACTERS = 2000  # the label of a programming problem holds its tests


@dataclass(frozen=True)
class StepRollouts:
    """What the experience maker knows of a step. Dictionaries are by rollout, its index within the step.

    Attributes:
        experiences: OpenRLHF's, as the update gets them.
        groups: every group of the step.
        rewards: scores before any length penalty; NaN where a reward failed.
        advantages: (T_i,) OpenRLHF's, before any weight.
        weights: (T_i,) what these were multiplied by; empty for a rule that makes advantages of its own.
        evidence_seconds: what the rule took for its evidence, on the slowest rank.
    """

    experiences: Sequence
    groups: Sequence[GroupCredit]
    rewards: Mapping[int, float]
    advantages: Mapping[int, torch.Tensor]
    weights: Mapping[int, torch.Tensor]
    evidence_seconds: float


class RolloutDump:
    """Writes `CKPT_PATH/rollouts/step000020.parquet`."""

    def __init__(self, args, rule: str, tokenizer):
        """
        Args:
            args: OpenRLHF's nested namespace.
            rule: the name of the credit rule.
        """
        self._every, self._folder = args.dump_rollouts_every, Path(args.ckpt.path) / "rollouts"
        self._rule, self._tokenizer, self._group_size = rule, tokenizer, args.rollout.n_samples_per_prompt
        spec = args.credit
        self._settings = {
            **(spec.knobs() if spec.estimator == "shear" else {}),
            "rule": rule,
            "estimator": spec.estimator,
            "model": args.actor.model_name_or_path,
            "samples_per_prompt": self._group_size,
        }

    def due(self, step: int) -> bool:
        """Whether step 1, 2, ... is written: the first one, where the policy is the base model, and every N-th."""
        return self._every > 0 and (step == 1 or step % self._every == 0)

    def write(self, step: int, made: StepRollouts) -> dict[str, float]:
        """The step's `RULE/dump_seconds`, evidence and all. A disk that cannot take the file costs the file, not the
        run.
        """
        path, started = self._folder / f"step{step:06d}.parquet", time.perf_counter()
        rows = rollout_rows(made, self._tokenizer, self._group_size)
        try:
            write_rollouts(path, rows, self._settings | {"step": step})
        except (OSError, pyarrow.ArrowException) as error:
            logger.warning(f"the rollouts of step {step} could not be written to {path}: {error}; training goes on")
        else:
            logger.info(f"{len(rows)} rollouts of step {step} written to {path}")
        return {f"{self._rule}/dump_seconds": made.evidence_seconds + time.perf_counter() - started}


def rollout_rows(made: StepRollouts, tokenizer, group_size: int) -> list[Rollout]:
    """One row a rollout, in the order of the step's prompts. Only response tokens: neither the prompt's, nor those of
    an environment between two turns.
    """
    correct = {i: outcome for group in made.groups for i, outcome in zip(group.rollouts, group.correct, strict=True)}
    spans = _span_fields(made.groups, group_size)
    rows = {}
    for experience in made.experiences:
        offset = experience.sequences.shape[1] - experience.action_mask.shape[1]
        for row, i in enumerate(experience.index):
            mask = experience.action_mask[row].bool()
            ids = experience.sequences[row, offset:][mask].tolist()
            prompt = _text(experience.prompts[row])
            weights, failed = made.weights.get(i), math.isnan(made.rewards[i])
            rows[i] = Rollout(
                group=str(i // group_size),
                sample=i % group_size,
                prompt=prompt,
                label=_label(experience.labels[row]),
                correct=correct[i],
                reward=None if failed else made.rewards[i],
                # of the last token, which holds no other token's KL reward where there are such
                advantage=None if failed or not ids else made.advantages[i][-1].item(),
                truncated=bool(experience.truncated[row]),
                weights=None if weights is None else weights.tolist(),
                token_advantages=experience.advantages[row, mask].tolist(),
                **token_columns(tokenizer, prompt, ids),
                **spans.get(i, {}),
            )
    return [rows[i] for i in sorted(rows)]


def _span_fields(groups: Sequence[GroupCredit], group_size: int) -> dict[int, dict]:
    """The span columns of every rollout whose rule gave evidence."""
    found = {}
    for group in groups:
        shown: Sequence[SpanEvidence] = group.evidence.rollouts if group.evidence is not None else ()
        samples = [i % group_size for i in group.rollouts]
        found |= {i: span_columns(one, samples) for i, one in zip(group.rollouts, shown, strict=False)}
    return found


def _label(label) -> str:
    text = "" if label is None else _text(str(label))
    return text if len(text) <= _LABEL_CHARACTERS else text[:_LABEL_CHARACTERS] + " ..."


def _text(text: str) -> str:
    """Without lone surrogates, which JSON can hold and a file cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")
