"""Samples generator of OpenRLHF with accounts of every rollout, where a failed reward costs only its rollout."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass

import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.utils.logging_utils import init_logger
from tqdm import tqdm
from vllm import SamplingParams

from openrlhf_shear.rewards.extra_logs import renamed
from openrlhf_shear.rewards.verdict import Failure, Verdict, of_numbers
from openrlhf_shear.train.carriers import ENGINE, FAILED, OLDER
from openrlhf_shear.train.sampling.accounts import Accounts
from openrlhf_shear.train.sampling.engine import VERDICT
from openrlhf_shear.train.sampling.engine_gap import log_probs_mode
from openrlhf_shear.train.sampling.engines import Engines, EnginesLostError, is_dead, last_line
from openrlhf_shear.train.sampling.order import PromptOrder, seed_of
from openrlhf_shear.train.screen.story import doing

logger = init_logger(__name__)
_POLL_SECONDS = 1.0  # between checks for a request to stop
_MOST_REVIVALS = 5  # rounds per step in which engines may die


@dataclass(frozen=True)
class Prompt:
    """Prompt for an engine, with its place in the run, which determines its seed."""

    place: tuple
    text: str
    label: object
    images: object


class ShearSamplesGenerator(SamplesGenerator):
    """Samples generator that counts training rollouts in accounts (`take_counts`).

    For evaluation rollouts it counts only the failures, in `eval_failed`. Each rollout has a separate seed, so samples
    depend only on --train.seed, the weights and the prompt's place in the run. When an engine dies, its prompts are
    sent again, to the engines alive by then.
    """

    def __init__(self, strategy, prompts_dataloader, eval_dataloader, tokenizer, engines: Engines, order: PromptOrder):
        """
        Args:
            order: the order of `prompts_dataloader`.
        """
        super().__init__(strategy, prompts_dataloader, eval_dataloader, tokenizer, engines.handles)
        self.eval_failed = 0
        self.kept: list[Experience] = []  # accepted rollouts for a later step
        self.check_stop: Callable[[], None] = lambda: None  # raises to end the run
        self.sampled: Callable[[], None] = lambda: None  # called after a batch, while the engines are awake
        self._engines, self._order = engines, order
        self._counts = Accounts()
        self._rejected: list[float] = []  # mean scores of the prompts filtered in a row
        self._prompts: Iterator[Prompt] = iter(())
        self._evaluates = False
        rollout = self.args.rollout
        mode = log_probs_mode(rollout.temperature, rollout.top_p)
        self._asks_log_probs = mode is not None and not self.args.vllm.no_logprobs

    # ── Position in the data ──

    def start_episode(self, episode: int, consumed: int = 0) -> None:
        """Start an episode after its first `consumed` prompts."""
        self._order.start_at(episode, consumed)
        self.consumed = consumed
        self._prompts = self._placed(self.prompts_dataloader, ("episode", episode), consumed)

    @property
    def ended(self) -> bool:
        """Whether the episode has no prompt and no rollout left."""
        return self.consumed >= self.prompts and not self.kept

    @property
    def prompts(self) -> int:
        """Number of prompts in an episode."""
        return len(self._order)

    def take_counts(self) -> Accounts:
        """Return the counts since the last call, and reset them."""
        return self._counts.take()

    # ── Rollouts ──

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs) -> tuple[list[Experience], float | None, int, bool]:
        """Return a batch of rollouts, the filter's pass rate (%), the prompts consumed, and whether the episode ended.

        As upstream, except that the pass rate is prompts over prompts; upstream divides rollouts by prompts. The last
        batch of an episode may be short.
        """
        rollout = self.args.rollout
        batch = rollout.batch_size * rollout.n_samples_per_prompt
        filtering = self.args.algo.dynamic_filtering_enable
        consumed, pass_rate = 0, None
        for sample in self.kept:
            sample.info[ENGINE] = torch.tensor([float(OLDER)])
        if len(self.kept) < batch and self.consumed < self.prompts:
            with self._awake():
                accepted, consumed = self._generate(
                    self._prompts, rollout.vllm_generate_batch_size or rollout.batch_size, filtering, generate_kwargs
                )
                self.sampled()
            self.consumed += consumed
            if filtering and consumed:
                pass_rate = 100 * len(accepted) / (rollout.n_samples_per_prompt * consumed)
            self.kept += accepted
        samples, self.kept = self.kept[:batch], self.kept[batch:]
        complete_info(samples)
        return samples, pass_rate, consumed, self.ended

    def generate_eval_samples(self, step: int = 0, **generate_kwargs) -> list[Experience]:
        """Return rollouts of every evaluation prompt, with other seeds at each step."""
        self._evaluates, self.eval_failed = True, 0
        prompts = self._placed(self.eval_dataloader, ("evaluation", step))
        samples: list[Experience] = []
        try:
            with self._awake():
                while accepted := self._generate(prompts, self.args.rollout.batch_size, False, generate_kwargs)[0]:
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
        self, prompts: Iterator[Prompt], count: int, filtering: bool, generate_kwargs: dict
    ) -> tuple[list[Experience], int]:
        """Return rollouts of `count` prompts, in prompt order, and the number of prompts consumed.

        Dynamic filtering replaces a filtered group while data is left. It stops once `count` groups had no reward at
        all: that is an outage, which would use up the episode.
        """
        waiting = list(itertools.islice(prompts, count))
        consumed, unrated, revivals, lost = len(waiting), 0, 0, False
        self._count_dispatched(consumed)
        what = "evaluating, prompts" if self._evaluates else "sampling and grading, prompts"
        pending: dict[ray.ObjectRef, tuple[Prompt, ray.actor.ActorHandle]] = {}
        accepted: dict[tuple, list[Experience]] = {}
        with tqdm(total=consumed, desc="Generate samples") as bar:
            while waiting or pending:
                if lost and not pending:  # the live engines have finished: weights can be sent
                    revivals += 1
                    if revivals > _MOST_REVIVALS:
                        raise EnginesLostError(f"engines died in {revivals} rounds of the same step; see their logs")
                    self._engines.revive()
                    lost = False
                if waiting and not lost:
                    pending |= self._dispatch(waiting, [engine for _, engine in pending.values()], generate_kwargs)
                    waiting = []
                ready, _ = ray.wait(list(pending), num_returns=1, timeout=_POLL_SECONDS)
                self.check_stop()
                for ref in ready:
                    prompt, engine = pending.pop(ref)
                    try:
                        responses = ray.get(ref)
                    except ray.exceptions.RayError as error:
                        if not is_dead(error):
                            raise
                        self._engines.require_revival()
                        logger.warning(f"an engine died, a prompt of it is sent again: {last_line(error)}")
                        waiting, lost = [*waiting, prompt], True
                        continue
                    group = [self._process_response_into_experience(answer, **generate_kwargs) for answer in responses]
                    for sample in group:
                        sample.info[ENGINE] = torch.tensor([float(self._engines.handles.index(engine))])
                    if not filtering or self._passes(group):
                        accepted[prompt.place] = group
                        bar.update()
                        continue
                    unrated += all(map(is_failed, group))
                    more = list(itertools.islice(prompts, int(unrated < count)))
                    waiting += more
                    consumed += len(more)
                    self._count_dispatched(len(more))
                bar.set_postfix(prompts_consumed=consumed)
                doing(what, len(accepted), count)
        return [sample for place in sorted(accepted) for sample in accepted[place]], consumed

    def _count_dispatched(self, prompts: int) -> None:
        if not self._evaluates:
            self._counts.dispatched += prompts * self.args.rollout.n_samples_per_prompt

    def _dispatch(self, prompts: list[Prompt], busy: list[ray.actor.ActorHandle], generate_kwargs: dict) -> dict:
        """Send each prompt to the engine with the fewest prompts; return (prompt, engine) by result reference.

        Args:
            busy: the engine of each prompt in flight.
        """
        asked = generate_kwargs.get
        sampling = SamplingParams(
            temperature=asked("temperature", 1.0),
            top_p=asked("top_p", 1.0),
            top_k=asked("top_k", -1),
            max_tokens=asked("max_new_tokens"),
            min_tokens=asked("min_new_tokens", 1),
            skip_special_tokens=asked("skip_special_tokens", False),
            logprobs=0 if self._asks_log_probs and not self._evaluates else None,  # 0: of the sampled token alone
        )
        samples = asked("n_samples_per_prompt", self.args.rollout.n_samples_per_prompt)
        load, chosen = {engine: busy.count(engine) for engine in self._engines.handles}, []
        for _ in prompts:
            engine = min(load, key=load.get)
            load[engine] += 1
            chosen.append(engine)
        if not busy and self._begins_at_once:
            held = Counter(chosen).items()
            self._engines.persist("hold", lambda: ray.get([engine.hold.remote(n * samples) for engine, n in held]))
        sent = {}
        for prompt, engine in zip(prompts, chosen, strict=True):
            seeded = copy(sampling)
            seeded.seed = seed_of(*prompt.place)  # the group's seed; the engine derives each rollout's
            ref = engine.generate_responses.remote(
                prompt=prompt.text,
                label=prompt.label,
                sampling_params=seeded,
                max_length=asked("max_len", 2048),
                hf_tokenizer=self.tokenizer,
                num_samples=samples,
                images=prompt.images,
            )
            sent[ref] = (prompt, engine)
        return sent

    @property
    def _begins_at_once(self) -> bool:
        """Whether the engines wait for a complete dispatch.

        Not with agents, whose turns arrive at any time, nor with partial rollouts, whose weights do.
        """
        return not (self.args.train.agent_func_path or self.args.train.partial_rollout_enable)

    def _passes(self, group: list[Experience]) -> bool:
        """Return whether dynamic filtering accepts the group: its mean known score lies inside the range."""
        scores = [sample.scores[0].item() for sample in group if not is_failed(sample) and sample.scores is not None]
        if not scores and any(sample.scores is None for sample in group):
            return True  # a reward model will score them
        low, high = self.args.algo.dynamic_filtering_range
        if scores and low < sum(scores) / len(scores) < high:
            self._rejected = []
            return True
        if scores:
            self._counts.filtered += len(scores)
            self._rejected.append(sum(scores) / len(scores))
            told = f"their mean scores are {min(self._rejected):g} to {max(self._rejected):g}"
            self._counts.filtered_scores = told
            if len(self._rejected) % self.args.rollout.batch_size == 0:
                outside = f"outside --algo.dynamic_filtering_range {low:g} {high:g}"
                logger.warning(f"{len(self._rejected)} prompts in a row were filtered: {told}, {outside}")
        return False

    def _process_response_into_experience(self, response: dict, **generate_kwargs) -> Experience:
        """Make an experience as upstream does; a failed reward becomes a placeholder of 0 that `info` marks.

        The response length counts only the policy's tokens. Upstream also counts a tool's tokens between them.
        """
        failed = None
        if self.args.reward.remote_url:
            response, failed = self._judged(response)
        experience = super()._process_response_into_experience(response, **generate_kwargs)
        experience.response_length = experience.action_mask.sum(1)
        if failed is not None:
            experience.info[FAILED] = torch.tensor([float(failed)])
        return experience

    def _judged(self, response: dict) -> tuple[dict, bool]:
        """Return the response with its verdict's numbers, and whether its reward failed."""
        verdict = _verdict_on(response)
        response = response | {"extra_logs": self._apart(verdict.extra_logs)}
        if verdict.is_questionable and self._counts.first_of("questionable"):
            logger.warning(f"a reward of {verdict.reward:g} is questionable; is it meant? (said once)")
        if verdict.failure is not None:
            response |= {"reward": 0.0, "scores": 0.0}
            self._record(verdict, response)
        elif response.get("scores") is None:  # of an agent
            response["scores"] = verdict.score
        return response, verdict.failure is not None

    def _apart(self, logs: dict) -> dict:
        """Rename a reward's `extra_logs` that clash with a training metric; log each renaming once."""
        for name in logs:
            if renamed(name) != name and self._counts.first_of(f"extra_logs {name}"):
                logger.warning(f"extra_logs has {name}, which is a metric of training; it is logged as {renamed(name)}")
        return {renamed(name): value for name, value in logs.items()}

    def _record(self, verdict: Verdict, response: dict) -> None:
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


def is_failed(sample: Experience) -> bool:
    """Return whether the reward of a single rollout is only a placeholder."""
    return FAILED in sample.info and bool(sample.info[FAILED].item())


def reward_of(sample: Experience) -> float | None:
    """Return the reward of a single rollout; None if it failed."""
    return None if is_failed(sample) else sample.rewards.item()


def complete_info(samples: list[Experience]) -> None:
    """Fill in missing keys of `info` with the mean of the other rollouts; a failed reward has no extra logs.

    Batches of rollouts with different keys would have columns of different lengths.
    """
    for name in {name for sample in samples for name in sample.info}:
        known = [sample.info[name].float() for sample in samples if name in sample.info]
        if len(known) < len(samples):
            mean = torch.cat(known).mean(0, keepdim=True)
            for sample in samples:
                sample.info.setdefault(name, mean)


def _verdict_on(response: dict) -> Verdict:
    """Return the verdict from `RewardExecutor`, or build it from the numbers of an agent's executor."""
    logs = response.get("extra_logs") or {}
    if VERDICT in logs:
        return logs[VERDICT]
    if response.get("reward") is None:
        return Verdict(None, failure=Failure.NO_REWARD, detail="the executor returned none", extra_logs=logs)
    numbers = {name: float(response[name]) for name in ("reward", "scores") if response.get(name) is not None}
    for name, value in numbers.items():
        if not math.isfinite(value):
            return Verdict(None, failure=Failure.NOT_FINITE, detail=f"{name} is {response[name]}", extra_logs=logs)
    return of_numbers(numbers["reward"], numbers.get("scores", numbers["reward"]), logs)
