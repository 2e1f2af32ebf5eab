"""The experience maker: whole groups to actor ranks, token weights back, weighted advantages out."""

from __future__ import annotations

import copy
import math
from dataclasses import fields

import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.credit.groups import CreditRequest, step_metrics
from openrlhf_shear.credit.registry import load_rule
from openrlhf_shear.credit.rule import CREDIT_TENSORS, GroupCredit, StepScores, checked_over_batch
from openrlhf_shear.credit.weights import weights_in_effect
from openrlhf_shear.fork.graded_experience import GradedExperienceMaker, failed_rows
from openrlhf_shear.fork.prm import StepScorer
from openrlhf_shear.fork.rollout_dump import StepRollouts
from openrlhf_shear.fork.schedule import Schedule, even_pieces, plan_micro_batches

logger = init_logger(__name__)


class CreditExperienceMaker(GradedExperienceMaker):
    """OpenRLHF's experience maker with the rule of `args.credit` applied to the `group_norm` advantages it computes.

    After `make_experience_batch`, `credit_metrics` holds the step's `RULE/...` metrics.

    Attributes:
        shows: whether the rule's evidence is asked for; set before a step.
        made: the step's rollouts, to be written, where it was.
    """

    def __init__(self, *args, step_scorer: StepScorer | None = None, **kwargs):
        """
        Args:
            step_scorer: for a rule that needs PRM scores.
        """
        super().__init__(*args, **kwargs)
        self.rule = load_rule(self.args.credit)
        self.credit_metrics: dict[str, float] = {}
        self.shows = False
        self.made: StepRollouts | None = None
        self._step_scorer = step_scorer
        # of the step being made
        self._schedule: Schedule | None = None
        self._samples: list[Experience] = []
        self._reward_refs: list[ray.ObjectRef] | None = None
        self._step_scores: list[tuple[StepScores, ...]] | None = None  # by micro-batch
        self._credit: dict[str, dict[int, torch.Tensor]] = {}  # by name in CREDIT_TENSORS and rollout
        self._groups: list[GroupCredit] = []
        self._evidence_seconds = 0.0
        self._rewards: dict[int, float] = {}  # by rollout, as are these:
        self._upstreams: dict[int, torch.Tensor] = {}  # (T_i,) advantages before any weight
        self._weights: dict[int, torch.Tensor] = {}  # (T_i,) what these were multiplied by

    @property
    def _ranks(self) -> int:
        return self.args.actor.num_nodes * self.args.actor.num_gpus_per_node

    # ── Whole groups on one rank ──

    def split_rollout_samples(self, rollout_samples: list[Experience]) -> list[Experience]:
        """Micro-batches in rank order; the rollouts of a prompt go to one rank, in every batching mode."""
        group_size = self.args.rollout.n_samples_per_prompt
        if len(rollout_samples) % group_size:
            raise ValueError(
                f"{len(rollout_samples)} rollouts do not form whole groups of "
                f"--rollout.n_samples_per_prompt {group_size}"
            )
        for i, sample in enumerate(rollout_samples):
            sample.index = [i]
        lengths = [int(sample.total_length.item()) for sample in rollout_samples]
        dynamic = self.args.train.dynamic_batch_enable
        self._schedule = plan_micro_batches(
            lengths,
            group_size,
            self._ranks,
            micro_batch_size=None if dynamic else self.args.rollout.micro_batch_size,
            max_tokens=self.args.rollout.max_tokens_per_gpu if dynamic else None,
        )
        return [self._concat([rollout_samples[i] for i in batch]) for batch in self._schedule.micro_batches]

    def make_experience_batch(self, rollout_samples: list[Experience]) -> list[Experience]:
        """As upstream's, with weighted advantages; ranks get equal numbers of samples for the update."""
        experiences = self._evened(super().make_experience_batch(rollout_samples))
        kept = [copy.copy(experience) for experience in experiences]  # dynamic batching takes their indices away
        parts = (kept, self._groups, self._rewards, self._upstreams, self._weights, self._evidence_seconds)
        self.made = StepRollouts(*parts) if self.shows else None
        return experiences

    def _evened(self, experiences: list[Experience]) -> list[Experience]:
        if self.args.train.dynamic_batch_enable or self._schedule.is_even:
            return experiences  # dynamic batching evens out the ranks itself, in upstream's train_step
        rows = [_row(experience, i) for experience in experiences for i in range(len(experience.sequences))]
        rows.sort(key=lambda row: row.index[0])
        pieces = even_pieces(len(rows), self._ranks, self.args.rollout.micro_batch_size)
        return [self._concat(rows[start:end]) for start, end in pieces]

    def _concat(self, samples: list[Experience]) -> Experience:
        return Experience.concat_experiences(samples, self.tokenizer.pad_token_id)

    # ── The forward passes ──

    @torch.no_grad()
    def make_experience(self, samples_list: list[Experience]) -> list[Experience]:
        self._samples = samples_list
        if self._step_scorer is not None:
            self._step_scores = self._step_scorer(samples_list)
        experiences = super().make_experience(samples_list)
        credits_by_rank = ray.get(self.actor_model_group.async_run_method("take_group_credits"))
        self._groups = groups = [group for rank in credits_by_rank for group in rank]
        self._credit = {name: {} for name in CREDIT_TENSORS}
        for group in groups:
            for name, tensors in group.tensors().items():
                self._credit[name].update(zip(group.rollouts, tensors, strict=True))
        self.credit_metrics = step_metrics(
            self.rule, groups, seconds=max(sum(group.seconds for group in rank) for rank in credits_by_rank)
        )
        self._evidence_seconds = max(sum(group.evidence_seconds for group in rank) for rank in credits_by_rank)
        if self._step_scorer is not None:
            self.credit_metrics |= self._step_scorer.metrics
        self._warn()
        return experiences

    def _dispatch_forward(self, group, sync_condition, **kwargs):
        slots = self._schedule.slots
        kwargs = {name: [values[slot.micro_batch] for slot in slots] for name, values in kwargs.items()}
        if group is self.actor_model_group:
            requests = self._credit_requests()
            kwargs["credit"] = [None if slot.is_filler else requests[slot.micro_batch] for slot in slots]
        refs = super()._dispatch_forward(group, sync_condition, **kwargs)
        if group is self.reward_model_group:
            self._reward_refs = refs
        return refs

    def _flatten_results(self, refs, duplicate_factor) -> list:
        results = super()._flatten_results(refs, duplicate_factor)
        if isinstance(refs, ray.ObjectRef):  # upstream's dummy for a model that is not there
            return results
        return [result for result, slot in zip(results, self._schedule.slots, strict=True) if not slot.is_filler]

    # ── Correctness ──

    def _credit_requests(self) -> list[CreditRequest]:
        """Correctness is judged on scores (before any length penalty), or on rewards where there are none.

        Upstream asks a reward model, where there is one, before the actor; its rewards are waited for here.
        """
        scores = [s.scores if s.scores is not None else s.rewards for s in self._samples]
        if self._reward_refs is not None:
            scores = self._flatten_results(self._reward_refs, 1)
            self._reward_refs = None
        threshold = self.args.credit.correct_threshold
        group_size = self.args.rollout.n_samples_per_prompt
        requests = []
        step_scores = self._step_scores or [None] * len(self._samples)
        for samples, score, of_steps in zip(self._samples, scores, step_scores, strict=True):
            judged = list(zip(failed_rows(samples).tolist(), score.flatten().float().tolist(), strict=True))
            requests.append(
                CreditRequest(
                    rollouts=tuple(samples.index),
                    groups=tuple(i // group_size for i in samples.index),
                    rewards=tuple(math.nan if failed else value for failed, value in judged),
                    correct=tuple(None if failed else value >= threshold for failed, value in judged),
                    group_size=group_size,
                    prm_scores=of_steps,
                    evidence=self.shows,
                )
            )
        self._rewards = {i: reward for r in requests for i, reward in zip(r.rollouts, r.rewards, strict=True)}
        return requests

    # ── Credited advantages ──

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        """Upstream's `group_norm` advantages (B, A), response tokens' times their weights, or the rule's own in their
        place; other columns untouched.
        """
        experiences = super().compute_advantages_and_returns(experiences)
        if self.rule.makes_advantages:
            self._finish_advantages(experiences)
        self._upstreams, self._weights = {}, {}
        for experience in experiences:
            for row, (i, mask) in enumerate(zip(experience.index, experience.action_mask.bool(), strict=True)):
                advantages = experience.advantages[row, mask]
                experience.advantages[row, mask] = self._credited(i, advantages).to(advantages.dtype)
        return experiences

    def _finish_advantages(self, experiences: list[Experience]) -> None:
        """The rule's last word on the whole batch; rollouts whose reward failed have no part in it, and get 0."""
        made = self._credit["advantages"]
        failed = {i for e in experiences for i, out in zip(e.index, failed_rows(e).tolist(), strict=True) if out}
        rated = [i for i in sorted(made) if i not in failed]
        made.update(zip(rated, checked_over_batch(self.rule, [made[i] for i in rated]), strict=True))
        made.update({i: torch.zeros_like(made[i]) for i in failed})

    def _credited(self, i: int, advantages: torch.Tensor) -> torch.Tensor:
        """(T_i,) from upstream's (T_i,)."""
        self._upstreams[i] = advantages
        if self.rule.makes_advantages:
            return self._credit["advantages"][i]
        weights, negative = self._credit["weights"][i], self._credit["negative_weights"].get(i)
        self._weights[i] = weights_in_effect(advantages, weights, negative)
        return advantages * self._weights[i]

    def _warn(self) -> None:
        nonfinite = int(self.credit_metrics.get("shear/nonfinite_rollouts", 0))
        if nonfinite:
            logger.warning(
                f"SHEAR: {nonfinite} rollouts with NaN or infinite hidden states keep weight 1 and oppose nobody"
            )
        unconverged = self.credit_metrics.get("shear/unconverged_fraction", 0.0)
        if unconverged:
            logger.warning(f"SHEAR: {unconverged:.2%} of the transport problems did not reach their tolerance")


def _row(experience: Experience, i: int) -> Experience:
    """Row i of a batched experience, as a batch of one."""

    def pick(value):
        if isinstance(value, dict):
            return {name: pick(item) for name, item in value.items()}
        return value[i : i + 1] if isinstance(value, torch.Tensor | list) else value

    return Experience(**{f.name: pick(getattr(experience, f.name)) for f in fields(Experience)})
