"""Samples generator of OpenRLHF with accounts of every rollout, where a failed reward costs only its rollout."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.utils.logging_utils import init_logger
from vllm import SamplingParams

from openrlhf_shear.rewards.verdict import Verdict
from openrlhf_shear.train.carriers import ENGINE, FAILED, OLDER, Accounts, Prompt
from openrlhf_shear.train.sampling.engine_gap import log_probs_mode
from openrlhf_shear.train.sampling.engines import Dispatch, Engines
from openrlhf_shear.train.sampling.order import PromptOrder
from openrlhf_shear.train.sampling.rollout_rewards import (
    DynamicFilter,
    complete_info,
    is_failed,
    verdict_of,
    with_numbers,
)
from openrlhf_shear.train.screen.story import doing

logger = init_logger(__name__)


class ShearSamplesGenerator(SamplesGenerator):
    """Samples generator that counts training rollouts in accounts (`take_counts`).

    For evaluation rollouts it counts only the failures, in `eval_failed`. Each rollout has a separate seed, so samples
    depend only on --train.seed, the weights and the prompt's place in the run. When an engine dies, its prompts are
    sent again, to the engines alive by then.
    """

    def __init__(self, strategy, prompts_dataloader, eval_dataloader, tokenizer, engines: Engines, order: PromptOrder):
        super().__init__(strategy, prompts_dataloader, eval_dataloader, tokenizer, engines.handles)
        self.eval_failed = 0
        self.reserve: list[Experience] = []  # accepted rollouts for a later step
        self.check_stop: Callable[[], None] = lambda: None  # raises to end the run
        self.sampled: Callable[[], None] = lambda: None  # called after a batch, while the engines are awake
        self._engines, self._order = engines, order
        self._counts = Accounts()
        self._prompts: Iterator[Prompt] = iter(())
        self._evaluates = False
        self._filter = None
        if self.args.algo.dynamic_filtering_enable:
            size = self.args.rollout.batch_size
            self._filter = DynamicFilter(self.args.algo.dynamic_filtering_range, size, self._counts)

    # ── Position in the data ──

    def start_episode(self, episode: int, consumed: int = 0) -> None:
        """Start an episode after its first `consumed` prompts."""
        self._order.start_at(episode, consumed)
        self.consumed = consumed
        self._prompts = self._placed(self.prompts_dataloader, ("episode", episode), consumed)

    @property
    def ended(self) -> bool:
        """Whether the episode has no prompt and no rollout left."""
        return self.consumed >= self.prompts and not self.reserve

    @property
    def prompts(self) -> int:
        """Number of prompts in an episode."""
        return len(self._order)

    def take_counts(self) -> Accounts:
        """Return the counts since the last call, and reset them."""
        return self._counts.take()

    # ── Rollouts ──

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs) -> tuple[list[Experience], float | None]:
        """Return a batch of rollouts, and the filter's pass rate (%).

        As upstream, except that the pass rate is prompts over prompts; upstream divides rollouts by prompts. The last
        batch of an episode may be short.
        """
        rollout = self.args.rollout
        batch = rollout.batch_size * rollout.n_samples_per_prompt
        pass_rate = None
        for sample in self.reserve:
            sample.info[ENGINE] = torch.tensor([float(OLDER)])
        if len(self.reserve) < batch and self.consumed < self.prompts:
            count = rollout.vllm_generate_batch_size or rollout.batch_size
            with self._awake():
                accepted, consumed = self._generate(self._prompts, count, self._filter, generate_kwargs)
                self.sampled()
            self.consumed += consumed
            if self._filter and consumed:
                pass_rate = 100 * len(accepted) / (rollout.n_samples_per_prompt * consumed)
            self.reserve += accepted
        samples, self.reserve = self.reserve[:batch], self.reserve[batch:]
        complete_info(samples)
        return samples, pass_rate

    def generate_eval_samples(self, step: int = 0, **generate_kwargs) -> list[Experience]:
        """Return rollouts of every evaluation prompt, with other seeds at each step."""
        self._evaluates, self.eval_failed = True, 0
        prompts = self._placed(self.eval_dataloader, ("evaluation", step))
        samples: list[Experience] = []
        try:
            with self._awake():
                while accepted := self._generate(prompts, self.args.rollout.batch_size, None, generate_kwargs)[0]:
                    samples += accepted
        finally:
            self._evaluates = False
        return samples

    def _placed(self, loader, place: tuple, start: int = 0) -> Iterator[Prompt]:
        for number, (_, (text,), (label,), (images,)) in enumerate(loader, start):
            yield Prompt((self.args.train.seed, *place, number), text, label, images)

    @contextmanager
    def _awake(self) -> Iterator[None]:
        sleeps = self.args.vllm.enable_sleep
        if sleeps:
            self._engines.call("wake_up")
        yield
        if sleeps:
            self._engines.call("sleep")

    def _generate(
        self, prompts: Iterator[Prompt], count: int, wanted: DynamicFilter | None, generate_kwargs: dict
    ) -> tuple[list[Experience], int]:
        """Return rollouts of `count` prompts, in prompt order, and the number of prompts consumed.

        Args:
            wanted: the filter; it replaces a rejected group while data is left. It stops once `count` groups had no
                reward at all: that is an outage, which would use up the episode.
        """
        what = "evaluating, prompts" if self._evaluates else "sampling and grading, prompts"
        samples = generate_kwargs.get("n_samples_per_prompt", self.args.rollout.n_samples_per_prompt)
        sampling, max_len = self._sampling(generate_kwargs), generate_kwargs.get("max_len", 2048)
        # Agents' turns arrive at any time, and so do the weights of partial rollouts: engines do not wait for a batch.
        at_any_time = self.args.train.agent_func_path or self.args.train.partial_rollout_enable
        dispatch = Dispatch(self._engines, (sampling, max_len, samples), held=0 if at_any_time else samples)
        accepted: dict[tuple, list[Experience]] = {}
        consumed, unrated, more = 0, 0, count
        while True:
            taken = list(itertools.islice(prompts, more))
            dispatch.add(self._tokenized(taken, max_len - (sampling.max_tokens or 1)))
            consumed += len(taken)
            if not self._evaluates:
                self._counts.dispatched += len(taken) * self.args.rollout.n_samples_per_prompt
            if not dispatch:
                break
            more = 0
            for prompt, engine, responses in dispatch.results():
                known = {"prompt": prompt.text, "label": prompt.label, "images": prompt.images}
                group = [self._process_response_into_experience(known | each, **generate_kwargs) for each in responses]
                for sample in group:
                    sample.info[ENGINE] = torch.tensor([float(engine)])
                if wanted is None or wanted.accepts(group):
                    accepted[prompt.place] = group
                else:
                    unrated += all(map(is_failed, group))
                    more += unrated < count
            self.check_stop()
            doing(what, len(accepted), count)
        return [sample for place in sorted(accepted) for sample in accepted[place]], consumed

    def _sampling(self, generate_kwargs: dict) -> SamplingParams:
        """Return vLLM's parameters, without a seed."""
        rollout, get = self.args.rollout, generate_kwargs.get
        comparable = log_probs_mode(rollout.temperature, rollout.top_p) is not None
        return SamplingParams(
            temperature=get("temperature", 1.0),
            top_p=get("top_p", 1.0),
            top_k=get("top_k", -1),
            max_tokens=get("max_new_tokens"),
            min_tokens=get("min_new_tokens", 1),
            skip_special_tokens=get("skip_special_tokens", False),
            logprobs=0 if comparable and not self._evaluates else None,  # 0: of the sampled token alone
        )

    def _tokenized(self, prompts: list[Prompt], room: int) -> list[Prompt]:
        """Return prompts with their token ids, at most the last `room`; not those with images or for an agent."""
        if not prompts or self.args.train.agent_func_path:
            return prompts
        of_texts = getattr(self.tokenizer, "tokenizer", self.tokenizer)  # a vision model has a processor
        rows = of_texts([prompt.text for prompt in prompts], add_special_tokens=False)["input_ids"]
        if of_texts is not self.tokenizer:
            rows = [None if prompt.images else ids for prompt, ids in zip(prompts, rows, strict=True)]
        if too_long := sum(len(ids) > room for ids in rows if ids is not None):
            logger.warning(f"{too_long} of {len(rows)} prompts lose their beginning: they have more than {room} tokens")
        return [replace(prompt, ids=ids and ids[-room:]) for prompt, ids in zip(prompts, rows, strict=True)]

    def _process_response_into_experience(self, response: dict, **generate_kwargs) -> Experience:
        """Make an experience as upstream does; a failed reward becomes a placeholder of 0 that `info` marks.

        The response length counts only the policy's tokens. Upstream also counts a tool's tokens between them.
        """
        verdict = verdict_of(response) if self.args.reward.remote_url else None
        if verdict is not None:
            response = with_numbers(response, verdict, self._counts)
            if verdict.failure is not None:
                self._count_failed(verdict, response)
        experience = super()._process_response_into_experience(response, **generate_kwargs)
        experience.response_length = experience.action_mask.sum(1)
        if verdict is not None:
            experience.info[FAILED] = torch.tensor([float(verdict.failure is not None)])
        return experience

    def _count_failed(self, verdict: Verdict, response: dict) -> None:
        """Count a failed reward; log the first of its reason."""
        if self._evaluates:
            self.eval_failed += 1
        else:
            self._counts.failed[verdict.why] += 1
            self._counts.details[verdict.why] = verdict.detail
        if self._counts.first_of(verdict.why):
            answer = self.tokenizer.decode(response["observation_tokens"])
            logger.warning(
                f"a reward failed, {verdict.why}: {verdict.detail}\n  label: {str(response['label'])[:300]!r}\n  "
                f"end of the rollout: {answer[-600:]!r}\n  (further failures of this kind are only counted, in ledger/)"
            )
