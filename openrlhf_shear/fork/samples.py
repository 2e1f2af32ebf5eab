"""The samples generator: OpenRLHF's, with a ledger of every rollout and rewards that may fail one by one."""

from __future__ import annotations

import math

import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator, _collect_prompt_batch
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from openrlhf.utils.logging_utils import init_logger
from tqdm import tqdm

from openrlhf_shear.fork.engine import VERDICT
from openrlhf_shear.rewards.ledger import Ledger
from openrlhf_shear.rewards.verdict import Verdict, of_numbers

logger = init_logger(__name__)
FAILED = "reward_failed"  # in a rollout's info: 1.0 where its reward is only a placeholder


class LedgerSamplesGenerator(SamplesGenerator):
    """Counts in `ledger` what is sampled for training; of evaluation rollouts only the failures, in `eval_failed`.

    With dynamic filtering, a short rest at the end of the data waits for the next episode, as long as there is one:
    an update of less than a batch is out of step with gradient accumulation, or dropped by dynamic batching.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.ledger = Ledger()
        self.eval_failed = 0
        self.episodes_left = 1  # the current one included; the trainer sets it
        self._sample_buffer: list[Experience] = []
        self._dataloader_iter = None
        self._in_episode = self._evaluates = False

    @property
    def waiting(self) -> int:
        """Rollouts with a reward that are kept for a later step."""
        return sum(not is_failed(sample) for sample in self._sample_buffer)

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs) -> tuple[list[Experience], float | None, int, bool]:
        """A batch of rollouts, the share of prompts that passed the filter (%), prompts consumed, end of the episode.

        As upstream's, but for the rest of an episode (see the class) and the pass rate, which upstream takes of
        rollouts over prompts.
        """
        if not self._in_episode:
            self._dataloader_iter, self._in_episode = iter(self.prompts_dataloader), True
        group_size = self.args.rollout.n_samples_per_prompt
        batch = self.args.rollout.batch_size * group_size
        filtering = self.args.algo.dynamic_filtering_enable
        consumed, pass_rate = 0, None

        if len(self._sample_buffer) < batch and self._dataloader_iter is not None:
            prompts = self.args.rollout.vllm_generate_batch_size or self.args.rollout.batch_size
            if self.args.vllm.enable_sleep:
                batch_vllm_engine_call(self.vllm_engines, "wake_up")
            accepted, consumed, at_end = self._generate_vllm(
                self._dataloader_iter, prompts, filtering, **generate_kwargs
            )
            if self.args.vllm.enable_sleep:
                batch_vllm_engine_call(self.vllm_engines, "sleep")
            if filtering and consumed:
                pass_rate = 100 * len(accepted) / (group_size * consumed)
            self._sample_buffer += accepted
            if at_end:
                self._dataloader_iter = None
                logger.info("Prompt dataloader is exhausted.")

        at_end = self._dataloader_iter is None
        keeps_rest = at_end and filtering and self.episodes_left > 1
        take = 0 if keeps_rest and len(self._sample_buffer) < batch else batch
        samples, self._sample_buffer = self._sample_buffer[:take], self._sample_buffer[take:]
        ended = at_end and (not self._sample_buffer or (keeps_rest and len(self._sample_buffer) < batch))
        if ended:
            self._in_episode = False
            self.episodes_left -= 1
        complete_info(samples)
        return samples, pass_rate, consumed, ended

    def generate_eval_samples(self, **generate_kwargs) -> list[Experience]:
        self._evaluates, self.eval_failed = True, 0
        try:
            return super().generate_eval_samples(**generate_kwargs)
        finally:
            self._evaluates = False

    def _generate_vllm(
        self, dataloader_iter, num_prompts: int, dynamic_filtering: bool, **generate_kwargs
    ) -> tuple[list[Experience], int, bool]:
        """Rollouts of `num_prompts` prompts, prompts consumed, whether the data ended.

        With dynamic filtering a group that is filtered, or has no reward at all, is replaced while there is data.
        """
        pending, consumed, at_end = self._dispatch_next(dataloader_iter, num_prompts, generate_kwargs)
        accepted: list[Experience] = []
        with tqdm(total=consumed, desc="Generate samples") as bar:
            while pending:
                ready, pending = ray.wait(pending, num_returns=1)
                responses = ray.get(ready[0])
                group = [self._process_response_into_experience(response, **generate_kwargs) for response in responses]
                if dynamic_filtering and not self._passes(group):
                    more, count, at_end = self._dispatch_next(dataloader_iter, 1, generate_kwargs)
                    pending += more
                    consumed += count
                else:
                    accepted += group
                    bar.update()
                bar.set_postfix(prompts_consumed=consumed)
        return accepted, consumed, at_end

    def _dispatch_next(self, dataloader_iter, count: int, generate_kwargs: dict) -> tuple[list, int, bool]:
        prompts, labels, images, at_end = _collect_prompt_batch(dataloader_iter, count)
        if not prompts:
            return [], 0, True
        refs = self._dispatch_prompts_to_vllm(prompts, labels, images=images, **generate_kwargs)
        if not self._evaluates:
            self.ledger.dispatched += len(prompts) * self.args.rollout.n_samples_per_prompt
        return refs, len(prompts), at_end

    def _passes(self, group: list[Experience]) -> bool:
        """Dynamic filtering: whether the mean score of the rollouts that have one lies inside the range."""
        scores = [sample.scores[0].item() for sample in group if not is_failed(sample) and sample.scores is not None]
        if not scores and any(sample.scores is None for sample in group):
            return True  # a reward model will score them
        low, high = self.args.algo.dynamic_filtering_range
        if scores and low < sum(scores) / len(scores) < high:
            return True
        self.ledger.filtered += len(scores)
        return False

    def _process_response_into_experience(self, response: dict, **generate_kwargs) -> Experience:
        """As upstream's; a failed reward becomes a placeholder of 0 that `info` marks."""
        if not self.args.reward.remote_url:
            return super()._process_response_into_experience(response, **generate_kwargs)
        verdict = _verdict_on(response)
        response = response | {"extra_logs": verdict.extra_logs}
        if verdict.failure is not None:
            response |= {"reward": 0.0, "scores": 0.0}
            self._record(verdict, response)
        experience = super()._process_response_into_experience(response, **generate_kwargs)
        experience.info[FAILED] = torch.tensor([float(verdict.failure is not None)])
        return experience

    def _record(self, verdict: Verdict, response: dict) -> None:
        if self._evaluates:
            self.eval_failed += 1
        else:
            self.ledger.failed[verdict.failure] += 1
        if self.ledger.first_of(verdict.failure):
            answer = self.tokenizer.decode(response["observation_tokens"])
            logger.warning(
                f"a reward failed, {verdict.failure}: {verdict.detail}\n  label: {str(response['label'])[:300]!r}\n  "
                f"end of the rollout: {answer[-600:]!r}\n  (further failures of this kind are only counted, in ledger/)"
            )


def is_failed(sample: Experience) -> bool:
    """Whether the reward of a single rollout is only a placeholder."""
    return FAILED in sample.info and bool(sample.info[FAILED].item())


def complete_info(samples: list[Experience]) -> None:
    """Give every rollout every key of `info`; a missing value (a failed reward has no extra logs) is the others' mean.

    Batches of rollouts with different keys would have columns of different lengths.
    """
    for name in {name for sample in samples for name in sample.info}:
        known = [sample.info[name].float() for sample in samples if name in sample.info]
        if len(known) < len(samples):
            mean = torch.cat(known).mean(0, keepdim=True)
            for sample in samples:
                sample.info.setdefault(name, mean)


def _verdict_on(response: dict) -> Verdict:
    """The verdict that `RewardExecutor` sent along, or that of the numbers which an agent's own executor gave."""
    logs = response.get("extra_logs") or {}
    if VERDICT in logs:
        return logs[VERDICT]
    if response.get("reward") is None:
        return Verdict(None, failure="no reward", detail="the executor returned none", extra_logs=logs)
    numbers = {name: float(response[name]) for name in ("reward", "scores") if response.get(name) is not None}
    for name, value in numbers.items():
        if not math.isfinite(value):
            return Verdict(None, failure="not finite", detail=f"{name} is {response[name]}", extra_logs=logs)
    return of_numbers(numbers["reward"], numbers.get("scores", numbers["reward"]), logs)
