"""The samples generator: OpenRLHF's, with a ledger of every rollout and rewards that may fail one by one."""

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

from openrlhf_shear.fork.engine import VERDICT
from openrlhf_shear.fork.engine_gap import ENGINE, OLDER, log_probs_mode
from openrlhf_shear.fork.engines import Engines, EnginesLostError, is_dead, last_line
from openrlhf_shear.fork.order import PromptOrder, seed_of
from openrlhf_shear.fork.story import doing
from openrlhf_shear.rewards.extra_logs import renamed
from openrlhf_shear.rewards.ledger import Ledger
from openrlhf_shear.rewards.verdict import Verdict, of_numbers

logger = init_logger(__name__)
FAILED = "reward_failed"  # in a rollout's info: 1.0 where its reward is only a placeholder
_POLL_SECONDS = 1.0  # between looks at whether the run shall stop
_MOST_REVIVALS = 5  # rounds of a step in which engines die


@dataclass(frozen=True)
class Prompt:
    """One that is sent to an engine, and the place in the run that its seed is made of."""

    place: tuple
    text: str
    label: object
    images: object


class LedgerSamplesGenerator(SamplesGenerator):
    """Counts what is sampled for training (`take_counts`); of evaluation rollouts only the failures, in `eval_failed`.

    What is drawn depends on nothing but the seed, the weights and the place of the prompt in the run: each rollout has
    a seed of its own. Prompts of an engine that dies are sent again, to those that there are then.
    """

    def __init__(self, strategy, prompts_dataloader, eval_dataloader, tokenizer, engines: Engines, order: PromptOrder):
        """`order` is that of `prompts_dataloader`."""
        super().__init__(strategy, prompts_dataloader, eval_dataloader, tokenizer, engines.handles)
        self.eval_failed = 0
        self.kept: list[Experience] = []  # accepted, for a later step
        self.check_stop: Callable[[], None] = lambda: None  # raises to end the run
        self.sampled: Callable[[], None] = lambda: None  # called after a batch, while the engines are awake
        self._engines, self._order = engines, order
        self._counts = Ledger()
        self._rejected: list[float] = []  # mean scores of the prompts that were filtered since one passed
        self._prompts: Iterator[Prompt] = iter(())
        self._evaluates = False
        rollout = self.args.rollout
        mode = log_probs_mode(rollout.temperature, rollout.top_p)
        self._asks_log_probs = mode is not None and not self.args.vllm.no_logprobs

    # ── Where in the data the run is ──

    def start_episode(self, episode: int, consumed: int = 0) -> None:
        """The prompts of an episode, after the first `consumed`."""
        self._order.start_at(episode, consumed)
        self.consumed = consumed
        self._prompts = self._placed(self.prompts_dataloader, ("episode", episode), consumed)

    @property
    def ended(self) -> bool:
        """Whether nothing of the episode is left."""
        return self.consumed >= self.prompts and not self.kept

    @property
    def prompts(self) -> int:
        """Of an episode."""
        return len(self._order)

    def take_counts(self) -> Ledger:
        """What was counted since the last call."""
        return self._counts.take()

    # ── Rollouts ──

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs) -> tuple[list[Experience], float | None, int, bool]:
        """A batch of rollouts, the share of prompts that passed the filter (%), prompts consumed, end of the episode.

        As upstream's, but for the pass rate, which upstream takes of rollouts over prompts. The last batch of an
        episode may be short.
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
        """Rollouts of every prompt of the evaluation data, drawn with seeds of their own at each step."""
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
        """Rollouts of `count` prompts, in the order of these, and prompts consumed.

        With dynamic filtering a group that is filtered is replaced while there is data; unless as many as `count` had
        no reward at all, which is an outage, and would eat the episode.
        """
        waiting = list(itertools.islice(prompts, count))
        consumed, unrated, revivals, lost = len(waiting), 0, 0, False
        self._count_dispatched(consumed)
        what = "evaluating, prompts" if self._evaluates else "sampling and grading, prompts"
        pending: dict[ray.ObjectRef, tuple[Prompt, ray.actor.ActorHandle]] = {}
        accepted: dict[tuple, list[Experience]] = {}
        with tqdm(total=consumed, desc="Generate samples") as bar:
            while waiting or pending:
                if lost and not pending:  # engines that live have finished: weights can be sent
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
                    group = [self._process_response_into_experience(one, **generate_kwargs) for one in responses]
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
        """Send each prompt to the engine with the fewest; what comes back, by its reference.

        Args:
            busy: the engines of prompts that are under way.
        """
        asked = generate_kwargs.get
        sampling = SamplingParams(
            temperature=asked("temperature", 1.0),
            top_p=asked("top_p", 1.0),
            top_k=asked("top_k", -1),
            max_tokens=asked("max_new_tokens"),
            min_tokens=asked("min_new_tokens", 1),
            skip_special_tokens=asked("skip_special_tokens", False),
            logprobs=0 if self._asks_log_probs and not self._evaluates else None,  # 0: of the drawn token alone
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
            seeded.seed = seed_of(*prompt.place)  # of the group; the engine makes one for each rollout of it
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
        """Whether the engines wait for all of a dispatch; an agent's turns come when they come, and the weights of
        partial rollouts too.
        """
        return not (self.args.train.agent_func_path or self.args.train.partial_rollout_enable)

    def _passes(self, group: list[Experience]) -> bool:
        """Dynamic filtering: whether the mean score of the rollouts that have one lies inside the range."""
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
            self._counts.details["filtered"] = told
            if len(self._rejected) % self.args.rollout.batch_size == 0:
                outside = f"outside --algo.dynamic_filtering_range {low:g} {high:g}"
                logger.warning(f"{len(self._rejected)} prompts in a row were filtered: {told}, {outside}")
        return False

    def _process_response_into_experience(self, response: dict, **generate_kwargs) -> Experience:
        """As upstream's; a failed reward becomes a placeholder of 0 that `info` marks. The response's length is of the
        tokens that the policy wrote; upstream's, from the first to the last of them, counts what a tool said between.
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
        """The response with its verdict's numbers, and whether its reward failed."""
        verdict = _verdict_on(response)
        response = response | {"extra_logs": self._apart(verdict.extra_logs)}
        if verdict.is_questionable and self._counts.first_of("questionable"):
            logger.warning(f"a reward of {verdict.reward:g} is questionable; is it meant? (said once)")
        if verdict.failure is not None:
            response |= {"reward": 0.0, "scores": 0.0}
            self._record(verdict, response)
        return response, verdict.failure is not None

    def _apart(self, logs: dict) -> dict:
        """A reward's `extra_logs` under names that no metric of training has; says once which were renamed."""
        for name in logs:
            if renamed(name) != name and self._counts.first_of(f"extra_logs {name}"):
                logger.warning(f"extra_logs has {name}, which is a metric of training; it is logged as {renamed(name)}")
        return {renamed(name): value for name, value in logs.items()}

    def _record(self, verdict: Verdict, response: dict) -> None:
        if self._evaluates:
            self.eval_failed += 1
        else:
            self._counts.failed[verdict.failure] += 1
            self._counts.details[verdict.failure] = verdict.detail
        if self._counts.first_of(verdict.failure):
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
