"""Grading of a run's rollouts, outside the engines: a pool of graders on each node, or reward servers."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from openrlhf_shear.rewards.client import RewardClient
from openrlhf_shear.rewards.pool import RewardPool
from openrlhf_shear.rewards.settings import RewardSettings
from openrlhf_shear.rewards.verdict import Failure, Verdict
from openrlhf_shear.train.sampling.engines import last_line
from openrlhf_shear.train.screen.outcome import RefusedError

# Attempts, and the pause between them, of a grade whose pool dies before the start: pools restart in that time.
_POOL_TRIES, _POOL_SECONDS = 600, 1.0


class Grading:
    """Grading of an engine's responses; a failed reward has no effect on other rollouts."""

    def __init__(self, urls: str | list[str], settings: RewardSettings):
        self._settings, self._alone = settings, asyncio.Lock()
        self._pool = self._client = None
        if settings.is_served:  # else the URLs are not used, and a pool on this node grades
            self._client = RewardClient(urls, settings.timeout, settings.retries, settings.token)
        else:
            self._pool = node_pool(settings, ray.get_runtime_context().get_node_id())

    async def grade(self, query: str, prompt: str, label: object) -> Verdict:
        """Return the verdict on a query: the prompt with its response."""
        try:
            return await (self._client.grade if self._client else self._grade_in_pool)(query, prompt, label)
        except Exception as error:  # whatever it is, only this rollout fails
            which, detail = type(error).__name__, str(error)[:500]
            return Verdict(None, failure=Failure.GRADER_RAISED, which=which, detail=detail)

    async def _grade_in_pool(self, query: str, prompt: str, label: object) -> Verdict:
        """Return the verdict; if the pool dies meanwhile, Ray restarts it and the grade is retried.

        Only a grade that has started can have killed its pool. Its retry gets a separate pool, one at a time; if that
        dies too, it is the grade's fault.
        """
        detail = ""
        for _ in range(_POOL_TRIES):
            started = False
            try:
                async for ref in self._pool.grade.remote(query, prompt, label):
                    verdict, started = await ref, True
                    if verdict is not None:  # not at the stream's end: another grade may have killed the pool by then
                        return verdict
            except ray.exceptions.RayActorError as error:
                detail = _cause(error)
            if started:
                async with self._alone:
                    return await self._grade_alone(query, prompt, label)
            await asyncio.sleep(_POOL_SECONDS)
        return Verdict(None, failure=Failure.POOL_DIED, detail=detail)

    async def _grade_alone(self, query: str, prompt: str, label: object) -> Verdict:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        own = RewardPoolActor.options(max_restarts=0, scheduling_strategy=here).remote(replace(self._settings, cores=1))
        try:
            refs = [ref async for ref in own.grade.remote(query, prompt, label)]
            return await refs[-1]
        except ray.exceptions.RayActorError as error:
            return Verdict(None, failure=Failure.POOL_DIED, detail=_cause(error))


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


@ray.remote(num_cpus=0, max_restarts=-1)
class RewardPoolActor:
    """Actor that holds a node's `RewardPool` in a separate process, shared by the node's engines."""

    def __init__(self, settings: RewardSettings):
        self._pool, self._room = RewardPool(settings), asyncio.Semaphore(settings.budget)

    @ray.method(num_returns="streaming")
    async def grade(self, query: str, prompt: str, label: object) -> AsyncIterator[Verdict | None]:
        """Yield None when the grade starts, then the verdict."""
        async with self._room:
            yield None
            yield await self._pool.grade(query, prompt, label)

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
