"""The rollout engine: OpenRLHF's, with rewards graded outside its process, each rollout for itself."""

import asyncio
import contextlib
import functools
import inspect
from collections.abc import AsyncIterator
from copy import copy

import ray
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
from openrlhf.utils.agent import SingleTurnAgentExecutor
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from vllm import SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_shear.fork import engine_process
from openrlhf_shear.fork.engine_gap import EngineFacts
from openrlhf_shear.fork.engines import last_line
from openrlhf_shear.fork.order import seed_of
from openrlhf_shear.fork.outcome import RefusedError
from openrlhf_shear.fork.upstream import plain_class
from openrlhf_shear.rewards.client import RewardClient
from openrlhf_shear.rewards.pool import RewardPool
from openrlhf_shear.rewards.settings import RewardSettings
from openrlhf_shear.rewards.verdict import Verdict

_POLL_SECONDS = 1.0
_POOL_TRIES, _POOL_SECONDS = 600, 1.0  # of a grade whose pool died before it began, a pause apart: pools start in that
_GATHER_SECONDS = 0.01  # between looks at whether a batch is whole
VERDICT = "reward_verdict"  # in a rollout's extra_logs, until the samples generator takes it out


class RewardRolloutActor(plain_class(RolloutRayActor)):
    """Upstream's engine whose single-turn executor is `RewardExecutor`."""

    reward: RewardSettings | None = None  # None where rewards come from a model
    log_probs_mode: str | None = None  # vLLM's; None where nobody asks for log-probs

    async def __init__(self, *args, agent_func_path: str | None = None, remote_rm_url=None, **kwargs):
        # Ray has started the actor again, with the base model's weights: it samples nothing until it has the policy's.
        self._stale = ray.get_runtime_context().was_current_actor_reconstructed
        self._cache_kept, self._sampled = False, set()
        kwargs["logprobs_mode"] = self.log_probs_mode or "raw_logprobs"  # upstream's: processed, also with top-p
        engine_process.install()
        kwargs["scheduling_policy"] = "priority"  # `Watched.generate` gives them
        # Without the URL upstream does not load a reward file into this process.
        await super().__init__(*args, agent_func_path=agent_func_path, remote_rm_url=None, **kwargs)
        self._failed = 0  # samples since `hold` that raised
        self._release: asyncio.Task | None = None
        self.llm = Watched(self.llm)
        if not agent_func_path and remote_rm_url:
            self.executor = RewardExecutor(remote_rm_url, self.reward)

    async def generate_responses(
        self, prompt, label, sampling_params, max_length, hf_tokenizer, num_samples=1, images=None
    ):
        """As upstream's; the samples of a seeded prompt have seeds of their own."""
        if sampling_params.seed is None:
            same = (prompt, label, sampling_params, max_length, hf_tokenizer)
            return await super().generate_responses(*same, num_samples=num_samples, images=images)

        async def one(number: int):
            seeded = copy(sampling_params)
            seeded.seed = seed_of(sampling_params.seed, number)
            same = (prompt, label, seeded, max_length, hf_tokenizer)
            try:
                return await super(RewardRolloutActor, self).generate_responses(*same, num_samples=1, images=images)
            except BaseException:
                self._failed += 1
                raise

        samples = await asyncio.gather(*map(one, range(num_samples)))
        return [sample for (sample,) in samples]

    async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
        """As upstream's, for executors; each turn of a conversation is seeded anew."""
        if sampling_params.seed is not None:
            sampling_params = copy(sampling_params)
            sampling_params.seed = seed_of(sampling_params.seed, len(prompt_token_ids))
        if sampling_params.logprobs is not None:  # of training
            self._sampled.add((sampling_params.temperature, sampling_params.top_p, sampling_params.top_k))
        return await self._generate(prompt_token_ids, sampling_params, multi_modal_data)

    async def _generate(self, *inputs):
        if self._stale:
            raise EngineDeadError()
        return await super().generate(*inputs)

    # ── Requests that share a step of vLLM's decide the last bits of their log-probs: a batch begins at once ──

    async def hold(self, samples: int) -> None:
        """Begin no generation until `samples` of them are here, or have failed before.

        What shares a step then follows from seeds and lengths alone, and not from when a request came.
        """
        if self._release is not None:
            self._release.cancel()  # of a batch that another engine's death has ended
        self._failed = 0
        await self.pause_generation()
        self._release = asyncio.create_task(self._release_when_whole(samples))

    async def _release_when_whole(self, samples: int) -> None:
        while self.get_num_unfinished_requests() + self._failed < samples:
            await asyncio.sleep(_GATHER_SECONDS)
        with contextlib.suppress(EngineDeadError):  # every generation says so itself
            await self.resume_generation()

    async def complete(self, prompt_ids: list[int], sampling: dict) -> tuple[list[int], bool]:
        """One completion without a reward: its tokens, and whether it ended at the token limit.

        Args:
            sampling: of vLLM's `SamplingParams`.
        """
        output = await self._generate(prompt_ids, SamplingParams(**sampling))
        (completion,) = output.outputs
        return list(completion.token_ids), completion.finish_reason == "length"

    async def score(self, token_ids: list[int]) -> list[float]:
        """Log-probs of these tokens but the first, each after those before it."""
        asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        entries = (await self._generate(token_ids, asked)).prompt_logprobs
        return [entry[token].logprob for entry, token in zip(entries[1:], token_ids[1:], strict=True)]

    async def facts(self) -> EngineFacts:
        """What may make its policy another than the one that is trained."""
        return EngineFacts(str(self.llm.model_config.dtype), self._cache_kept, frozenset(self._sampled))

    async def reset_prefix_cache(self) -> None:
        """As upstream's, which does not look whether vLLM did."""
        self._cache_kept = not await self.llm.reset_prefix_cache()

    async def is_well(self) -> bool:
        """Whether vLLM's core, a process of its own, is there."""
        return not self.llm.errored

    async def update_weight(self, name, dtype, shape, empty_cache=False):
        """As upstream's; the last one of a synchronization comes with `empty_cache`."""
        await super().update_weight(name, dtype, shape, empty_cache)
        self._stale &= not empty_cache

    async def update_weight_cuda_ipc(self, name, dtype, shape, ipc_handles, empty_cache=False):
        """As `update_weight`."""
        await super().update_weight_cuda_ipc(name, dtype, shape, ipc_handles, empty_cache)
        self._stale &= not empty_cache

    async def shut_down(self) -> None:
        """End vLLM's core at once."""
        self.llm.shutdown()


class Watched:
    """vLLM's asynchronous engine, whose calls end when its core does. It fails generations then, but a call that waits
    for the core's answer (new weights, a pause) would wait for ever.
    """

    def __init__(self, llm):
        self._llm = llm

    def __getattr__(self, name: str):
        attribute = getattr(self._llm, name)
        return functools.partial(self._answer, attribute) if inspect.iscoroutinefunction(attribute) else attribute

    def generate(self, prompt, sampling_params, request_id: str):
        """As vLLM's; of requests that wait the smallest seed begins first, whichever came first."""
        return self._llm.generate(prompt, sampling_params, request_id, priority=sampling_params.seed or 0)

    async def _answer(self, call, *args, **kwargs):
        """Raises EngineDeadError: the core died meanwhile."""
        answer = asyncio.ensure_future(call(*args, **kwargs))
        try:
            while not (await asyncio.wait({answer}, timeout=_POLL_SECONDS))[0]:
                if self._llm.errored:
                    raise EngineDeadError()
            return answer.result()
        finally:
            answer.cancel()


class RewardExecutor(SingleTurnAgentExecutor):
    """A rollout whose reward fails comes back with the reason; no other rollout notices."""

    def __init__(self, urls: str | list[str], settings: RewardSettings):
        """
        Args:
            urls: of reward servers; without effect where a pool on this node grades.
        """
        super().__init__(None)
        self._pool = self._client = None
        if settings.is_served:
            self._client = RewardClient(urls, settings.timeout, settings.retries, settings.token)
        else:
            self._pool = node_pool(settings, ray.get_runtime_context().get_node_id())
        self.reward_endpoints, self.reward_func = [settings.reward], self._pool  # what upstream's branches look at

    async def _fetch_rewards_via_func(self, queries, prompts, labels) -> list[dict]:
        return [_response(await self._graded(*sample)) for sample in zip(queries, prompts, labels, strict=True)]

    async def _graded(self, query: str, prompt: str, label: object) -> Verdict:
        """The verdict, also where a pool dies meanwhile: Ray starts it again, and it is asked again.

        Only a grade that has begun can have killed its pool. It is done again with no other beside it, so that a pool
        that dies once more died of it.
        """
        alone = False
        for _ in range(_POOL_TRIES):
            begun = False
            try:
                async for ref in self._pool.grade.remote(query, prompt, label, alone):
                    verdict, begun = await ref, True
                return verdict
            except ray.exceptions.RayActorError as error:
                detail = f"{type(error).__name__}: {error}"[:500]
            if begun and alone:
                break
            alone = alone or begun
            await asyncio.sleep(_POOL_SECONDS)
        return Verdict(None, failure="reward pool died", detail=detail)

    async def _fetch_rewards_via_http(self, queries, prompts, labels) -> list[dict]:
        samples = zip(queries, prompts, labels, strict=True)
        return [_response(await self._client.grade(*sample)) for sample in samples]


def _response(verdict: Verdict) -> dict:
    return verdict.as_openrlhf() | {"extra_logs": {VERDICT: verdict}}


@ray.remote(num_cpus=0, max_restarts=-1)
class RewardPoolActor:
    """A `RewardPool` in a process of its own; the engines of a node share one."""

    def __init__(self, settings: RewardSettings):
        self._pool, self._budget = RewardPool(settings), settings.budget
        self._room, self._alone = asyncio.Semaphore(self._budget), asyncio.Lock()

    @ray.method(num_returns="streaming")
    async def grade(self, query: str, prompt: str, label: object, alone: bool) -> AsyncIterator[Verdict | None]:
        """None when the grade begins, then the verdict; `alone`: with no other beside it."""
        async with self._turn(alone):
            yield None
            yield await self._pool.grade(query, prompt, label)

    @contextlib.asynccontextmanager
    async def _turn(self, alone: bool) -> AsyncIterator[None]:
        async with (
            self._alone if alone else contextlib.nullcontext()
        ):  # two that wait for all of the room would have half each
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
        """Raises as `RewardPool.check`: this node cannot grade."""
        await asyncio.to_thread(self._pool.check)


def node_pool(settings: RewardSettings, node: str) -> ray.actor.ActorHandle:
    """The pool actor of a node (its id), started by whoever asks first."""
    return RewardPoolActor.options(
        name=f"openrlhf_shear reward pool {settings.reward} {node}",
        get_if_exists=True,
        max_concurrency=100_000,  # calls wait in the pool, not in Ray
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    ).remote(settings)


def checked_pools(settings: RewardSettings) -> list[ray.actor.ActorHandle]:
    """The pools of all nodes with GPUs, each of which can grade; they live as long as somebody has them.

    Raises:
        RefusedError: a node cannot.
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
