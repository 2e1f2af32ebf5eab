"""Rollout engine of OpenRLHF with rewards graded outside its process, each rollout separately."""

import asyncio
import contextlib
import functools
import inspect
from collections import Counter
from collections.abc import AsyncIterator
from contextvars import ContextVar
from copy import copy

import ray
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
from openrlhf.utils.agent import SingleTurnAgentExecutor
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from vllm import SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_shear.rewards.client import RewardClient
from openrlhf_shear.rewards.pool import RewardPool
from openrlhf_shear.rewards.settings import RewardSettings
from openrlhf_shear.rewards.verdict import Failure, Verdict
from openrlhf_shear.train.sampling import engine_process
from openrlhf_shear.train.sampling.engine_gap import EngineFacts
from openrlhf_shear.train.sampling.engines import last_line
from openrlhf_shear.train.sampling.order import seed_of
from openrlhf_shear.train.screen.outcome import RefusedError
from openrlhf_shear.train.upstream import plain_class

_POLL_SECONDS = 1.0
# Attempts, and the pause between them, of a grade whose pool dies before the start: pools restart in that time.
_POOL_TRIES, _POOL_SECONDS = 600, 1.0
_RECEIPT_SECONDS = 60.0  # that a pool waits for a caller to receive its verdict
_GATHER_SECONDS = 0.01  # between checks whether a batch is complete
VERDICT = "reward_verdict"  # key in a rollout's extra_logs, until the samples generator removes it
# What training asked of a rollout's generation, in the task of that rollout.
_asked: ContextVar[SamplingParams | None] = ContextVar("asked", default=None)
_prompts: ContextVar[Counter[tuple[int, ...]]] = ContextVar("prompts")  # how often a rollout has continued each
# Log-probs of a rollout's generations, by the number of tokens before them and their tokens.
_drawn: ContextVar[dict[tuple[int, tuple[int, ...]], list[float]]] = ContextVar("drawn")


class RewardRolloutActor(plain_class(RolloutRayActor)):
    """Engine of OpenRLHF with `RewardExecutor` for single turns, a seed per rollout, and checks of its own state."""

    reward: RewardSettings | None = None  # None where rewards come from a model
    log_probs_mode: str | None = None  # vLLM's mode; None if log-probs are not requested

    async def __init__(self, *args, agent_func_path: str | None = None, remote_rm_url=None, **kwargs):
        # After a restart by Ray the actor has the base model's weights: it samples nothing until it gets the policy's.
        self._stale = ray.get_runtime_context().was_current_actor_reconstructed
        self._cache_kept, self._sampled = False, set()
        kwargs["logprobs_mode"] = self.log_probs_mode or "raw_logprobs"  # upstream: always processed
        engine_process.install()
        kwargs["scheduling_policy"] = "priority"  # `Watched.generate` sets priorities
        # Without the URL upstream does not load a reward file into this process.
        await super().__init__(*args, agent_func_path=agent_func_path, remote_rm_url=None, **kwargs)
        self._failed = 0  # samples that raised since `hold`
        self._release: asyncio.Task | None = None
        self.llm = Watched(self.llm)
        if not agent_func_path and remote_rm_url:
            self.executor = RewardExecutor(remote_rm_url, self.reward)

    async def generate_responses(
        self, prompt, label, sampling_params, max_length, hf_tokenizer, num_samples=1, images=None
    ):
        """Generate responses as upstream does; with a seed, each sample of a prompt gets a separate seed."""
        if sampling_params.seed is None:
            same = (prompt, label, sampling_params, max_length, hf_tokenizer)
            return await super().generate_responses(*same, num_samples=num_samples, images=images)

        async def sampled(number: int):
            seeded = copy(sampling_params)
            seeded.seed = seed_of(sampling_params.seed, number)
            _asked.set(seeded)
            _prompts.set(Counter())
            _drawn.set({})
            same = (prompt, label, seeded, max_length, hf_tokenizer)
            try:
                made = await super(RewardRolloutActor, self).generate_responses(*same, num_samples=1, images=images)
                return [_with_log_probs(sample, _drawn.get()) for sample in made]
            except BaseException:
                self._failed += 1
                raise

        samples = await asyncio.gather(*map(sampled, range(num_samples)))
        return [sample for (sample,) in samples]

    async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
        """Generate as upstream does, for executors; each turn, and each candidate of a turn, gets a new seed."""
        asked = _asked.get() or sampling_params
        if sampling_params.logprobs is None:  # an agent's own parameters
            sampling_params.logprobs = asked.logprobs
        seed = asked.seed if sampling_params.seed is None else sampling_params.seed
        if seed is not None:
            sampling_params = copy(sampling_params)
            earlier, prompt = _prompts.get(Counter()), tuple(prompt_token_ids)
            candidate = [earlier[prompt]] if earlier[prompt] else []
            sampling_params.seed = seed_of(seed, len(prompt), *candidate)
            earlier[prompt] += 1
        if sampling_params.logprobs is not None:  # only for training
            self._sampled.add((sampling_params.temperature, sampling_params.top_p, sampling_params.top_k))
        output = await self._generate(prompt_token_ids, sampling_params, multi_modal_data)
        for drawn in output.outputs:
            if drawn.logprobs is not None:
                tokens = tuple(drawn.token_ids)
                log_probs = [entry[token].logprob for entry, token in zip(drawn.logprobs, tokens, strict=True)]
                _drawn.get({})[len(prompt_token_ids), tokens] = log_probs
        return output

    async def _generate(self, *inputs):
        if self._stale:
            raise EngineDeadError()
        return await super().generate(*inputs)

    # ── A batch starts together: requests that share a vLLM step change the last bits of each other's log-probs ──

    async def hold(self, samples: int) -> None:
        """Start no generation until `samples` requests have arrived or failed.

        Seeds and lengths alone then decide which requests share a step; arrival times do not matter.
        """
        if self._release is not None:
            self._release.cancel()  # from a batch that another engine's death ended
        self._failed = 0
        await self.pause_generation()
        self._release = asyncio.create_task(self._release_when_whole(samples))

    async def _release_when_whole(self, samples: int) -> None:
        while self.get_num_unfinished_requests() + self._failed < samples:
            await asyncio.sleep(_GATHER_SECONDS)
        with contextlib.suppress(EngineDeadError):  # every generation raises it too
            await self.resume_generation()

    async def complete(self, prompt_ids: list[int], sampling: dict) -> tuple[list[int], bool]:
        """Return the tokens of a completion, without a reward, and whether it ended at the token limit.

        Args:
            prompt_ids: the prompt's token ids.
            sampling: arguments of vLLM's `SamplingParams`.
        """
        output = await self._generate(prompt_ids, SamplingParams(**sampling))
        (completion,) = output.outputs
        return list(completion.token_ids), completion.finish_reason == "length"

    async def score(self, token_ids: list[int]) -> list[float]:
        """Return the log-probs of all tokens but the first, each given the tokens before it."""
        asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        entries = (await self._generate(token_ids, asked)).prompt_logprobs
        return [entry[token].logprob for entry, token in zip(entries[1:], token_ids[1:], strict=True)]

    async def facts(self) -> EngineFacts:
        """Return facts that may explain a gap to the trained policy."""
        return EngineFacts(str(self.llm.model_config.dtype), self._cache_kept, frozenset(self._sampled))

    async def reset_prefix_cache(self) -> None:
        """Reset the prefix cache as upstream does, and record whether vLLM refused."""
        self._cache_kept = not await self.llm.reset_prefix_cache()

    async def is_well(self) -> bool:
        """Return whether vLLM's core, a separate process, is alive."""
        return not self.llm.errored

    async def update_weight(self, name, dtype, shape, empty_cache=False):
        """Update a weight as upstream does; `empty_cache` marks the last weight of a synchronization."""
        await super().update_weight(name, dtype, shape, empty_cache)
        self._stale &= not empty_cache

    async def update_weight_cuda_ipc(self, name, dtype, shape, ipc_handles, empty_cache=False):
        """Update a weight by CUDA IPC, otherwise as `update_weight`."""
        await super().update_weight_cuda_ipc(name, dtype, shape, ipc_handles, empty_cache)
        self._stale &= not empty_cache

    async def shut_down(self) -> None:
        """End vLLM's core at once."""
        self.llm.shutdown()


class Watched:
    """Wrapper of vLLM's asynchronous engine whose calls fail when the core dies.

    vLLM itself then fails generations, but a call that waits for the core's answer (new weights, a pause) would hang.
    """

    def __init__(self, llm):
        self._llm = llm

    def __getattr__(self, name: str):
        attribute = getattr(self._llm, name)
        return functools.partial(self._answer, attribute) if inspect.iscoroutinefunction(attribute) else attribute

    def generate(self, prompt, sampling_params, request_id: str):
        """Generate as vLLM does; among waiting requests the smallest seed starts first, whatever arrived first."""
        return self._llm.generate(prompt, sampling_params, request_id, priority=sampling_params.seed or 0)

    async def _answer(self, call, *args, **kwargs):
        """Await a call, and check the core meanwhile.

        Raises:
            EngineDeadError: the core died.
        """
        answer = asyncio.ensure_future(call(*args, **kwargs))
        try:
            while not (await asyncio.wait({answer}, timeout=_POLL_SECONDS))[0]:
                if self._llm.errored:
                    raise EngineDeadError()
            return answer.result()
        finally:
            answer.cancel()


class RewardExecutor(SingleTurnAgentExecutor):
    """Single-turn executor that returns a failed reward with its reason, without effect on other rollouts."""

    def __init__(self, urls: str | list[str], settings: RewardSettings):
        """
        Args:
            urls: the reward servers' addresses; unused if a pool on this node grades.
            settings: the grader's settings.
        """
        super().__init__(None)
        self._pool = self._client = None
        if settings.is_served:
            self._client = RewardClient(urls, settings.timeout, settings.retries, settings.token)
        else:
            self._pool = node_pool(settings, ray.get_runtime_context().get_node_id())
        self.reward_endpoints, self.reward_func = [settings.reward], self._pool  # upstream branches on these

    async def _fetch_rewards_via_func(self, queries, prompts, labels) -> list[dict]:
        return [_response(await self._graded(*sample)) for sample in zip(queries, prompts, labels, strict=True)]

    async def _graded(self, query: str, prompt: str, label: object) -> Verdict:
        """Return the verdict; if the pool dies meanwhile, Ray restarts it and the grade is retried.

        Only a grade that has started can have killed its pool. Its retry runs alone in the pool, so a second death is
        the grade's fault.
        """
        alone = False
        for _ in range(_POOL_TRIES):
            begun = False
            try:
                async for ref in self._pool.grade.remote(query, prompt, label, alone):
                    verdict, begun = await ref, True
                    if verdict is not None:  # not at the stream's end: another grade may have killed the pool by then
                        if alone:
                            self._pool.received.remote()
                        return verdict
            except ray.exceptions.RayActorError as error:
                detail = f"{type(error).__name__}: {error}"[:500]
            if begun and alone:
                break
            alone = alone or begun
            await asyncio.sleep(_POOL_SECONDS)
        return Verdict(None, failure=Failure.POOL_DIED, detail=detail)

    async def _fetch_rewards_via_http(self, queries, prompts, labels) -> list[dict]:
        samples = zip(queries, prompts, labels, strict=True)
        return [_response(await self._client.grade(*sample)) for sample in samples]


def _with_log_probs(sample: dict, drawn: dict[tuple[int, tuple[int, ...]], list[float]]) -> dict:
    """Return an executor's sample with a log-prob for each token, 0 for tokens that the policy did not write.

    Upstream's executor leaves out turns for which the agent gave parameters of its own without log-probs.

    Raises:
        ValueError: an action has tokens that no generation has drawn.
    """
    tokens, given = sample["observation_tokens"], sample["rollout_log_probs"]
    if given is None or len(given) == len(tokens):
        return sample
    whole = [0.0] * len(tokens)
    for start, end in sample["action_ranges"]:
        turn = drawn.get((start, tuple(tokens[start:end])))
        if turn is None:
            raise ValueError(f"the agent returned tokens {start} to {end} as its action, which no generation has drawn")
        whole[start:end] = turn
    return sample | {"rollout_log_probs": whole}


def _response(verdict: Verdict) -> dict:
    return verdict.as_openrlhf() | {"extra_logs": {VERDICT: verdict}}


@ray.remote(num_cpus=0, max_restarts=-1)
class RewardPoolActor:
    """Actor that holds a node's `RewardPool` in a separate process, shared by the node's engines."""

    def __init__(self, settings: RewardSettings):
        self._pool, self._budget = RewardPool(settings), settings.budget
        self._room, self._alone = asyncio.Semaphore(self._budget), asyncio.Lock()
        self._received = asyncio.Event()  # set when the caller of the grade that runs alone has its verdict

    @ray.method(num_returns="streaming")
    async def grade(self, query: str, prompt: str, label: object, alone: bool) -> AsyncIterator[Verdict | None]:
        """Yield None when the grade starts, then the verdict.

        Args:
            alone: whether no other grade may run at the same time. The next grade then waits for `received` too: if it
                killed the pool while this verdict is on its way, this grade would be blamed.
        """
        async with self._turn(alone):
            self._received.clear()
            yield None
            yield await self._pool.grade(query, prompt, label)
            if alone:
                with contextlib.suppress(TimeoutError):  # the caller may have died
                    await asyncio.wait_for(self._received.wait(), _RECEIPT_SECONDS)

    async def received(self) -> None:
        """Let other grades run: the verdict of the grade that ran alone has arrived."""
        self._received.set()

    @contextlib.asynccontextmanager
    async def _turn(self, alone: bool) -> AsyncIterator[None]:
        async with (
            self._alone if alone else contextlib.nullcontext()
        ):  # the lock: two grades that want all slots would deadlock
            taken = 0
            try:
                for _ in range(self._budget if alone else 1):
                    await self._room.acquire()
                    taken += 1
                yield
            finally:
                for _ in range(taken):
                    self._room.release()

    @ray.method(max_task_retries=2)
    async def check(self) -> None:
        """Raise as `RewardPool.check` if this node cannot grade."""
        await asyncio.to_thread(self._pool.check)


def node_pool(settings: RewardSettings, node: str) -> ray.actor.ActorHandle:
    """Return the pool actor of a node, by the node's id; the first call starts it."""
    return RewardPoolActor.options(
        name=f"openrlhf_shear reward pool {settings.reward} {node}",
        get_if_exists=True,
        max_concurrency=100_000,  # calls wait in the pool, not in Ray
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    ).remote(settings)


def checked_pools(settings: RewardSettings) -> list[ray.actor.ActorHandle]:
    """Return the pools of all nodes with GPUs, after a check; a pool lives while a handle to it exists.

    Raises:
        RefusedError: a node cannot grade.
    """
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
    pools = [node_pool(settings, node["NodeID"]) for node in nodes]
    for node, ref in zip(nodes, [pool.check.remote() for pool in pools], strict=True):
        try:
            ray.get(ref)
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or last_line(error)
            where = node["NodeManagerHostname"]
            raise RefusedError(f"node {where} cannot grade --reward.remote_url {settings.reward}: {cause}") from None
    return pools
