"""Experience maker with credit: sends whole groups to actor ranks, and makes weighted advantages of the results."""

import copy
import math
from collections import defaultdict
from dataclasses import dataclass, field

import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.config.spec import OutcomeConfig
from openrlhf_shear.credit.apply import TokenCredit, blame_over_praise, token_advantages
from openrlhf_shear.credit.groups import CreditRequest, Outcomes, step_metrics, step_warnings
from openrlhf_shear.credit.rule import CreditRule, GroupCredit, StepScores
from openrlhf_shear.rollouts.columns import StepRollouts
from openrlhf_shear.train.experience.fillers import without_fillers
from openrlhf_shear.train.experience.graded_experience import GradedExperienceMaker, failed_rows
from openrlhf_shear.train.experience.prm import StepScorer
from openrlhf_shear.train.experience.schedule import PAIR_SECONDS, TOKEN_SECONDS, share_credit
from openrlhf_shear.train.sampling.rollout_rewards import NAMES, renamed
from openrlhf_shear.train.screen.outcome import RefusedError

logger = init_logger(__name__)


@dataclass
class Step:
    """State of the step in progress, in the order in which it becomes known."""

    samples: list[Experience] = field(default_factory=list)  # the micro-batches
    step_scores: list[tuple[StepScores, ...]] | None = None  # per micro-batch, if the rule needs PRM scores
    reward_refs: list[ray.ObjectRef] | None = None  # a reward model's answers, not read yet
    base_refs: list[ray.ObjectRef] | None = None  # the reference model's log-probs, not read yet
    requests: list[CreditRequest] = field(default_factory=list)  # per micro-batch
    groups: list[GroupCredit] = field(default_factory=list)
    evidence_seconds: float = 0.0  # its evidence's duration on the slowest rank
    tokens: dict[int, TokenCredit] = field(default_factory=dict)  # by the rollout's index in the step


class CreditExperienceMaker(GradedExperienceMaker):
    """Experience maker that applies the rule of `args.credit` to the `group_norm` advantages.

    After `make_experience_batch`, `credit_metrics` holds the step's `RULE/...` metrics.

    Attributes:
        pair_seconds: how long the search takes for a pair of tokens with opposite outcomes; measured in each step.
    """

    pair_seconds = PAIR_SECONDS

    def __init__(self, *args, rule: CreditRule, step_scorer: StepScorer | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self.rule, self.rule_name, self.makes_advantages = rule, rule.name, rule.makes_advantages
        self.credit_metrics: dict[str, float] = {}
        self._warned: set[str] = set()  # warnings that are given once
        self._step_scorer = step_scorer
        self._step: Step | None = None

    def split_rollout_samples(self, rollout_samples: list[Experience]) -> list[Experience]:
        micro_batches = super().split_rollout_samples(rollout_samples)
        self._step = Step()
        return micro_batches

    def make_experience_batch(self, rollout_samples: list[Experience]) -> list[Experience]:
        """Make the experience as `GradedExperienceMaker` does, with weighted advantages."""
        self.shown = None
        experiences = super().make_experience_batch(rollout_samples)
        if self.shows:
            copies = [*map(copy.copy, without_fillers(experiences))]  # dynamic batching removes their indices
            step = self._step
            self.shown = StepRollouts(copies, step.groups, step.tokens, step.evidence_seconds)
        return experiences

    def metrics(self) -> dict[str, float]:
        return super().metrics() | self.credit_metrics

    # ── The forward passes ──

    @torch.no_grad()
    def make_experience(self, samples_list: list[Experience]) -> list[Experience]:
        step = self._step
        step.samples = samples_list
        if self._step_scorer is not None:
            step.step_scores = self._step_scorer(samples_list)
        experiences = super().make_experience(samples_list)
        if "ref_log_probs" in self.rule.needs:
            self._send_ref_log_probs(step.requests)
        by_rank = self._weighed(step.requests)
        step.groups = [group for rank in by_rank for group in rank]
        step.evidence_seconds = max(sum(group.evidence_seconds for group in rank) for rank in by_rank)
        seconds = max(sum(group.seconds for group in rank) for rank in by_rank)
        self.credit_metrics = step_metrics(self.rule, step.groups, seconds)
        if self._step_scorer is not None:
            self.credit_metrics |= self._step_scorer.metrics
        if self.outcomes is None:
            threshold = self.args.credit.outcome.correct_threshold
            self.outcomes = Outcomes("--credit.correct_threshold", threshold, "--credit.correct_reward")
        for line in filter(None, (*step_warnings(self.credit_metrics, self._warned), self.outcomes.note(step.groups))):
            logger.warning(line)
        return experiences

    def _dispatch_forward(self, group, sync_condition, **kwargs):
        once = None
        if group is self.actor_model_group:
            self._step.requests = self._credit_requests()
            once = {"credit": self._step.requests}
        refs = super()._dispatch_forward(group, sync_condition, once, **kwargs)
        if group is self.reward_model_group:
            self._step.reward_refs = refs
        if group is self.initial_model_group:
            self._step.base_refs = refs
        return refs

    def _send_ref_log_probs(self, requests: list[CreditRequest]) -> None:
        """Send each rank the reference model's log-probs of its groups: upstream asks this model after the actor."""
        by_rank = [defaultdict(dict) for _ in self.actor_model_group.actors]
        base = self._flatten_results(self._step.base_refs, self._copies)
        for samples, request, log_probs in zip(self._step.samples, requests, base, strict=True):
            rows = zip(request.rollouts, request.groups, request.owners, log_probs, samples.action_mask, strict=True)
            for rollout, group, owner, values, mask in rows:
                by_rank[owner][group][rollout] = values.float()[mask.bool()]
        sent = zip(self.actor_model_group.actors, by_rank, strict=True)
        ray.get([actor.add_late.remote("ref_log_probs", dict(rows)) for actor, rows in sent])

    def _weighed(self, requests: list[CreditRequest]) -> list[list[GroupCredit]]:
        """Have the ranks weigh all groups; return each rank's. A rank with more than its share lends groups to others.

        Which rank weighs a group changes no bit of its weights.
        """
        lengths, correct = defaultdict(list), defaultdict(list)
        for samples, request in zip(self._step.samples, requests, strict=True):
            rows = zip(request.groups, samples.action_mask.sum(1).tolist(), request.correct, strict=True)
            for group, length, is_right in rows:
                lengths[group].append(length)
                correct[group].append(is_right)
        actors, owners = self.actor_model_group.actors, self._schedule.owners
        work = [self.rule.work(lengths[group], correct[group]) for group in range(len(owners))]
        shares = self._shares(actors, owners, work, [sum(lengths[group]) for group in range(len(owners))])
        foreign = [[group for group in share if owners[group] != rank] for rank, share in enumerate(shares)]
        lent: list[dict[int, ray.ObjectRef]] = [{} for _ in actors]
        if any(foreign):
            wanted = [[g for groups in foreign for g in groups if owners[g] == rank] for rank in range(len(actors))]
            lent = ray.get([actor.lend_groups.remote(groups) for actor, groups in zip(actors, wanted, strict=True)])
            refs = {number: ref for of_rank in lent for number, ref in of_rank.items()}
            borrowed = [{number: refs[number] for number in groups if number in refs} for groups in foreign]
            by_rank = zip(actors, shares, borrowed, strict=True)
            ray.get([actor.work_on_groups.remote(share, lent_here) for actor, share, lent_here in by_rank])
        by_rank = ray.get([actor.take_group_credits.remote([*gone]) for actor, gone in zip(actors, lent, strict=True)])
        seconds = sum(group.seconds for groups in by_rank for group in groups)
        if sum(work) and seconds:
            self.pair_seconds = seconds / sum(work)
        return by_rank

    def _shares(self, actors: list, owners: list[int], work: list[float], tokens: list[int]) -> list[list[int]]:
        """Share out the groups that wait, within the ranks' memory; the others have been weighed in the passes."""
        if len(actors) == 1 or not any(work):
            return [[g for g, owner in enumerate(owners) if owner == rank] for rank in range(len(actors))]
        held = ray.get([actor.waiting_groups.remote() for actor in actors])
        sizes = {number: size for waiting, _ in held for number, size in waiting.items()}
        left = [amount if group in sizes else 0.0 for group, amount in enumerate(work)]
        if not any(left):
            return self._shares(actors, owners, left, tokens)
        tolls = [TOKEN_SECONDS / self.pair_seconds * count for count in tokens]
        room = {"sizes": [sizes.get(g, 0.0) for g in range(len(owners))], "limits": [limit for _, limit in held]}
        return share_credit(left, owners, len(actors), tolls, **room)

    # ── Correctness ──

    def _credit_requests(self) -> list[CreditRequest]:
        """Make a credit request per micro-batch; correctness follows scores, or rewards if there are no scores.

        Scores come before any length penalty. Upstream calls a reward model, if there is one, before the actor; this
        method waits for its rewards.
        """
        step = self._step
        scores = [s.scores if s.scores is not None else s.rewards for s in step.samples]
        if step.reward_refs is not None:
            scores = self._flatten_results(step.reward_refs, self._copies)
        outcome = self.args.credit.outcome
        group_size = self.args.rollout.n_samples_per_prompt
        requests, step_scores = [], step.step_scores or [None] * len(step.samples)
        for samples, score, of_steps in zip(step.samples, scores, step_scores, strict=True):
            failed = failed_rows(samples).tolist()
            rewards = [math.nan if out else value for out, value in zip(failed, _row(score), strict=True)]
            deciding = rewards if outcome.correct_reward is None else _row(deciding_reward(samples, outcome))
            groups = tuple(i // group_size for i in samples.index)
            requests.append(
                CreditRequest(
                    rollouts=tuple(samples.index),
                    groups=groups,
                    rewards=tuple(rewards),
                    correct=tuple(
                        None if out else value >= outcome.correct_threshold
                        for out, value in zip(failed, deciding, strict=True)
                    ),
                    group_size=group_size,
                    owners=tuple(self._schedule.owners[group] for group in groups),
                    prm_scores=of_steps,
                    step=self.training_step,
                    evidence=self.shows,
                )
            )
        return requests

    # ── Credited advantages ──

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        """Weigh upstream's `group_norm` advantages (B, A) of response tokens, or replace them by the rule's.

        Other columns do not change. A KL reward is not credit for the outcome: it is added without a weight.
        """
        experiences = super().compute_advantages_and_returns(experiences)
        rows = [
            (experience, row, i, mask)
            for experience in experiences
            for row, (i, mask) in enumerate(zip(experience.index, experience.action_mask.bool(), strict=True))
        ]
        failed = {i for e in experiences for i, out in zip(e.index, failed_rows(e).tolist(), strict=True) if out}
        baselined = dict(enumerate(self._baselined.tolist()))
        base = {i: e.advantages.new_full((int(mask.sum()),), baselined[i]) for e, _, i, mask in rows}
        kl = None  # from each token on
        if self.kl_ctl.value:
            kl = {i: e.advantages[row, mask].double() - base[i] for e, row, i, mask in rows}
        self._step.tokens = token_advantages(self.rule, self._step.groups, base, failed, kl)
        balance = blame_over_praise(self._step.tokens.values())
        self.credit_metrics |= {} if balance is None else {f"{self.rule.name}/blame_over_praise": balance}
        for experience, row, i, mask in rows:
            experience.advantages[row, mask] = self._step.tokens[i].advantages
        return experiences


def deciding_reward(samples: Experience, outcome: OutcomeConfig) -> torch.Tensor:
    """Return the entry of `extra_logs` that --credit.correct_reward names, (B,).

    Raises RefusedError: the rewards have no such entry.
    """
    name = renamed(outcome.correct_reward)
    if name not in samples.info:
        known = ", ".join(sorted(set(samples.info) - NAMES)) or "none"
        raise RefusedError(
            f"--credit.correct_reward {outcome.correct_reward}: the extra_logs of the rewards have no such entry; "
            f"they have {known}"
        )
    return samples.info[name]


def _row(values: torch.Tensor) -> list[float]:
    return values.flatten().float().tolist()
