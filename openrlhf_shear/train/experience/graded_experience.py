"""Experience maker for failed rewards, values that are not finite, and rollouts that do not divide over the ranks."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace

import numpy as np
import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.credit.baselines import ESTIMATORS, fill_failed, group_advantages
from openrlhf_shear.credit.groups import Outcomes
from openrlhf_shear.rollouts.columns import StepRollouts
from openrlhf_shear.train.carriers import ENGINE, FAILED
from openrlhf_shear.train.experience.fillers import row_of, shared_out
from openrlhf_shear.train.experience.schedule import Schedule, Slot, plan_micro_batches
from openrlhf_shear.train.experience.shaping import SHAPING, shape_rewards, token_rewards
from openrlhf_shear.train.sampling.engine_gap import Gap, measure

logger = init_logger(__name__)


class NothingToTrainError(RuntimeError):
    """Error of a step none of whose rollouts can be in the update."""


class GradedExperienceMaker(RemoteExperienceMaker):
    """Experience maker of OpenRLHF that accepts failed or equal rewards, and any number of rollouts and ranks.

    A rollout whose reward failed stays in the batch with advantage 0, as a rollout of an unmixed group does
    (`credit.baselines`). A KL or entropy loss needs no reward and still sees it. This is exact for the estimators with
    a group baseline, which are computed here. Upstream computes those that whiten advantages over the batch (`gae`,
    `reinforce`, `reinforce_baseline`); there a failed rollout counts with the mean reward of its group.

    A rollout with a log-prob, value or advantage that is not finite is left out of the update.

    Attributes:
        rule_name: the name of the credit rule, which is the prefix of its metrics; "" without one.
        makes_advantages: whether that rule replaces the advantages of groups.
        outcomes: what the run's groups tell of the threshold of correctness; None before the first step, and without a
            credit rule.
        training_step: the number, from 1, of the training step of the next batch; set before a step.
        shows: whether to compute the rule's evidence; set before a step.
        shown: the step's rollouts for the dump, if `shows`.
        broken: the rollouts that the last step left out: indices by reason.
        gap: the last step's gap between the engines' log-probs and the policy's.
    """

    rule_name, makes_advantages = "", False
    outcomes: Outcomes | None = None

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.training_step, self.shows = 1, False
        self.shown: StepRollouts | None = None
        self.broken: dict[str, list[int]] = {}
        self.gap: Gap | None = None
        self.judge_gap: Callable[..., None] = lambda *_: None  # raises to end the run (GapWatch.judge)
        self._schedule: Schedule | None = None
        self._baselined: torch.Tensor | None = None  # (N,): the last step's rewards minus the baseline, without KL

    def _ranks(self, model: str = "actor") -> int:
        """Return the number of data-parallel ranks; the ranks of a ring or a tensor-parallel group count once."""
        shape = getattr(self.args, model)
        return shape.num_nodes * shape.num_gpus_per_node // self._copies

    def metrics(self) -> dict[str, float]:
        """Return the last step's metrics beside those of upstream's step."""
        return {} if self.gap is None else self.gap.metrics()

    @property
    def _copies(self) -> int:
        return self.args.ds.ring_attn_size * self.args.ds.tensor_parallel_size

    # ── Whole groups on one rank, and equally many forward passes on every rank ──

    def split_rollout_samples(self, rollout_samples: list[Experience]) -> list[Experience]:
        """Return micro-batches in rank order; the rollouts of a prompt go to one rank, in every batching mode."""
        group_size = self.args.rollout.n_samples_per_prompt
        for i, sample in enumerate(rollout_samples):
            sample.index = [i]
        lengths = [int(sample.total_length.item()) for sample in rollout_samples]
        limit = {"micro_batch_size": self.args.rollout.micro_batch_size}
        if self.args.train.dynamic_batch_enable:
            limit = {"max_tokens": self.args.rollout.max_tokens_per_gpu * self._copies}
        self._schedule = plan_micro_batches(lengths, group_size, self._ranks(), copies=self._copies, **limit)
        batches = ([rollout_samples[i] for i in batch] for batch in self._schedule.micro_batches)
        return [Experience.concat_experiences(batch, self.tokenizer.pad_token_id) for batch in batches]

    def make_experience_batch(self, rollout_samples: list[Experience]) -> list[Experience]:
        """Make the experience as upstream does, without broken rollouts and with fillers, ready for the ranks.

        Fillers complete the last optimizer step (`fillers`).

        Raises:
            NothingToTrainError: every rollout is broken; upstream's trainer would read the first of an empty list.
        """
        self.broken, self.gap = {}, None
        experiences = super().make_experience_batch(rollout_samples)
        self._note_broken("advantage not finite", experiences, lambda e: (e.advantages * e.action_mask,))
        experiences = self._without_broken(experiences)
        if not experiences:
            raise NothingToTrainError("no rollout is finite")
        train, models = self.args.train, ["actor", *(["critic"] if self.critic_model_group is not None else [])]
        sizes = (train.batch_size, train.micro_batch_size, [self._ranks(model) for model in models])
        return shared_out(experiences, *sizes, self.tokenizer.pad_token_id, train.dynamic_batch_enable)

    def _dispatch_forward(self, group, sync_condition, once: Mapping[str, list] | None = None, **kwargs):
        """Start the forward passes of a model group, fillers included.

        Args:
            once: arguments with a value per micro-batch, which a filler pass does not get.
            kwargs: arguments with a value per micro-batch.
        """
        slots = list(self._schedule.slots)
        ranks = len(group.actors) // self._copies
        slots += [Slot(0, is_filler=True)] * (-len(slots) % ranks)  # this model may have another number of ranks
        inputs = {name: [values[slot.micro_batch] for slot in slots] for name, values in kwargs.items()}
        for name, values in (once or {}).items():
            inputs[name] = [None if slot.is_filler else values[slot.micro_batch] for slot in slots]
        return super()._dispatch_forward(group, sync_condition, **inputs)

    def _flatten_results(self, refs, duplicate_factor) -> list:
        results = super()._flatten_results(refs, duplicate_factor)
        if isinstance(refs, ray.ObjectRef):  # upstream's dummy for a missing model
            return results
        return [result for result, slot in zip(results, self._schedule.slots, strict=False) if not slot.is_filler]

    # ── Values that are not finite ──

    @torch.no_grad()
    def make_experience(self, samples_list: list[Experience]) -> list[Experience]:
        experiences = super().make_experience(samples_list)
        self.gap = measure(experiences)
        if self.gap is not None:
            self.judge_gap(self.gap, experiences, self)
        for experience in experiences:
            experience.info.pop(ENGINE, None)
            if self.args.algo.advantage.is_correction_level == "off":
                experience.rollout_log_probs = None  # the update does not correct by them
        columns = ("action_log_probs", "base_action_log_probs", "values", "kl")

        def masked(experience: Experience) -> list[torch.Tensor]:
            tensors = [getattr(experience, name) for name in columns]
            return [tensor * experience.action_mask for tensor in tensors if tensor is not None]

        self._note_broken("log-prob or value not finite", experiences, masked)
        for experience in experiences:  # an agent may end before the policy writes: a mean over no token
            silent = experience.action_mask.sum(1) == 0
            for name in ("kl", "logprobs_diff"):
                experience.info[name] = experience.info[name].masked_fill(silent, 0.0)
        for experience in experiences if self.broken else ():
            lost = failed_rows(experience)[:, None]
            for name in columns:  # keep them out of sums over the batch
                if getattr(experience, name) is not None:
                    setattr(experience, name, getattr(experience, name).masked_fill(lost, 0.0))
        return experiences

    def score(self, token_ids: list[int]) -> torch.Tensor:
        """Return the log-probs of all tokens but the first, each given the tokens before it."""
        sequences = torch.tensor([token_ids])
        masks = {"action_mask": torch.ones_like(sequences)[:, 1:], "attention_mask": torch.ones_like(sequences)}
        refs = self.actor_model_group.async_run_method("forward", sequences=sequences, **masks)
        return ray.get(refs)[0][0]

    def gap_without_adapters(self, experiences: list[Experience]) -> Gap:
        """Return the gap between the engines and the model without LoRA's adapters, over the step's micro-batches."""
        names = ("sequences", "action_mask", "attention_mask")
        slots = self._schedule.slots
        inputs = {name: [getattr(experiences[slot.micro_batch], name) for slot in slots] for name in names}
        refs = self.actor_model_group.async_run_method_batch(method_name="forward_without_adapters", **inputs)
        pairs = zip(experiences, self._flatten_results(refs, self._copies), strict=True)
        return measure([replace(experience, action_log_probs=log_probs) for experience, log_probs in pairs])

    def _note_broken(self, reason: str, experiences: list[Experience], columns: Callable) -> None:
        """Mark rows with a value that is not finite in one of the (B, A) tensors that `columns` returns."""
        for experience in experiences:
            finite = torch.stack([tensor.float().isfinite().all(1) for tensor in columns(experience)]).all(0)
            known = {i for indices in self.broken.values() for i in indices}
            new = [i for i, good in zip(experience.index, finite.tolist(), strict=True) if not good and i not in known]
            if new:
                self.broken.setdefault(reason, []).extend(new)
        lost = {i for indices in self.broken.values() for i in indices}
        for experience in experiences if lost else ():
            out = torch.tensor([float(i in lost) for i in experience.index])
            experience.info[FAILED] = torch.maximum(failed_rows(experience).float(), out)

    def _without_broken(self, experiences: list[Experience]) -> list[Experience]:
        lost = {i for indices in self.broken.values() for i in indices}
        if not lost:
            return experiences
        return [row_of(e, k) for e in experiences for k, i in enumerate(e.index) if i not in lost]

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        order = torch.tensor([i for experience in experiences for i in experience.index])
        sizes = [len(experience.index) for experience in experiences]
        failed = _by_prompt(torch.cat([failed_rows(e) for e in experiences]), order)
        if failed.any():
            rewards = _by_prompt(torch.cat([e.rewards.float() for e in experiences]), order)
            filled = fill_failed(rewards, failed, self.args.rollout.n_samples_per_prompt)
            for experience, values in zip(experiences, filled[order].split(sizes), strict=True):
                experience.rewards = experience.info["reward"] = values
        shape_rewards(experiences, self.args)
        if self.advantage_estimator in ESTIMATORS:
            self._with_group_baseline(experiences, order, failed)
        else:
            for experience in experiences:  # upstream adds the KL of the prompt's tokens to the return
                experience.kl = experience.kl * experience.action_mask
            other = copy(self)  # its flags shape no reward: `shape_rewards` has done that, and upstream clips too late
            reward = Namespace(**vars(self.args.reward) | dict.fromkeys(SHAPING))
            other.strategy = Namespace(args=Namespace(**vars(self.args) | {"reward": reward}))
            experiences = RemoteExperienceMaker.compute_advantages_and_returns(other, experiences)
        for experience, out in zip(experiences, failed[order].split(sizes), strict=True):
            if out.any():
                experience.advantages = experience.advantages * ~out[:, None]
        return experiences

    @torch.no_grad()
    def get_advantages_and_returns(
        self, values: torch.Tensor, rewards: torch.Tensor, action_mask: torch.Tensor, gamma: float, lambd: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return GAE's advantages and returns, (B, A), over the policy's own tokens; 0 at all others.

        Upstream's recursion also runs over the tokens of a tool, with values of 0: below lambda 1 the advantages before
        a tool's output then change, even in sign.
        """
        mask = action_mask.bool()
        after = torch.zeros_like(values[:, 0])  # the value and the advantage of the policy's next token
        advantage, advantages = torch.zeros_like(after), torch.zeros_like(values)
        for t in reversed(range(values.shape[1])):
            here, value = mask[:, t], values[:, t]
            delta = rewards[:, t] + gamma * after - value
            advantage = torch.where(here, delta + gamma * lambd * advantage, advantage)
            after = torch.where(here, value, after)
            advantages[:, t] = advantage * here
        return advantages, advantages + values * mask

    def _with_group_baseline(self, experiences: list[Experience], order: torch.Tensor, failed: torch.Tensor) -> None:
        """Set advantages and returns as upstream: subtract the baseline, add any KL reward, sum from each token on.

        These estimators take no discount.
        """
        args, size = self.args, self.args.rollout.n_samples_per_prompt
        if args.algo.advantage.gamma != 1.0:  # upstream's message, logged once
            logger.warning(f"gamma is set to 1.0 for {self.advantage_estimator}")
            args.algo.advantage.gamma = 1.0
        rewards = _by_prompt(torch.cat([experience.rewards for experience in experiences]), order)
        spread = rewards.view(-1, size).std(-1).repeat_interleave(size)
        self._baselined = group_advantages(rewards, size, self.advantage_estimator, failed)
        for experience in experiences:
            rows = torch.tensor(experience.index)
            mask = experience.action_mask
            reward = token_rewards(self._baselined[rows], self.kl_ctl.value, experience.kl, mask)
            experience.returns = sums_from_each_token(reward)
            experience.advantages = experience.returns.clone()
            experience.info |= {"group_reward_std": spread[rows], "return": reward.sum(-1)}
            experience.kl = None


def failed_rows(experience: Experience) -> torch.Tensor:
    """Return (B,) bool: whether the reward is only a placeholder."""
    if FAILED in experience.info:
        return experience.info[FAILED].flatten().bool()
    return torch.zeros(len(experience.index), dtype=torch.bool)


def reward_stats(experiences: Sequence[Experience]) -> dict[str, float]:
    """Return the mean and deviation of rewards that did not fail, by upstream's names; {} where none can fail."""
    if FAILED not in experiences[0].info:
        return {}
    rewards = torch.cat([each.info["reward"][~failed_rows(each)] for each in experiences]).float()
    deviation = rewards.std().item() if len(rewards) > 1 else 0.0
    return {"rollout/reward_mean": rewards.mean().item(), "rollout/reward_std": deviation}


def _by_prompt(values: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Sort values from rank order into prompt order: `values[k]` belongs to rollout `order[k]`."""
    sorted_values = torch.empty_like(values)
    sorted_values[order] = values
    return sorted_values


def sums_from_each_token(rewards: torch.Tensor) -> torch.Tensor:
    """Return the sums of (B, A) rewards from each token on, in upstream's order without its loop over tokens."""
    # np.add, because torch.cumsum sums in another order.
    sums = np.add.accumulate(rewards.float().flip(1).cpu().numpy(), axis=1)
    return torch.from_numpy(sums).flip(1).to(rewards)
