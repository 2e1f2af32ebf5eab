"""Rollout engine of OpenRLHF with a seed per rollout and turn, batches that start together, and checks of itself."""

import asyncio
import contextlib
import functools
import inspect
from collections import Counter
from contextvars import ContextVar
from copy import copy

import ray
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
from vllm import SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_shear.rewards.settings import RewardSettings
from openrlhf_shear.train.sampling import engine_process
from openrlhf_shear.train.sampling.order import seed_of
from openrlhf_shear.train.sampling.reward_executor import RewardExecutor
from openrlhf_shear.train.upstream import plain_class

_POLL_SECONDS = 1.0
_GATHER_SECONDS = 0.01  # between checks whether a batch is complete
# Training's parameters for a rollout's generation, in the task of that rollout.
_parameters: ContextVar[SamplingParams | None] = ContextVar("parameters", default=None)
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

        async def sample_of(number: int) -> dict:
            seeded = copy(sampling_params)
            seeded.seed = seed_of(sampling_params.seed, number)
            _parameters.set(seeded)
            _prompts.set(Counter())
            _drawn.set({})
            try:
                same = (prompt, label, seeded, max_length, hf_tokenizer)
                (sample,) = await super(RewardRolloutActor, self).generate_responses(*same, images=images)
                return _with_log_probs(sample, _drawn.get())
            except BaseException:
                self._failed += 1
                raise

        return await asyncio.gather(*map(sample_of, range(num_samples)))

    async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
        """Generate as upstream does, for executors; each turn, and each candidate of a turn, gets a new seed."""
        wanted = _parameters.get() or sampling_params
        if sampling_params.logprobs is None:  # an agent's own parameters
            sampling_params.logprobs = wanted.logprobs
        seed = wanted.seed if sampling_params.seed is None else sampling_params.seed
        if seed is not None:
            sampling_params = copy(sampling_params)
            earlier, prompt = _prompts.get(Counter()), tuple(prompt_token_ids)
            candidate = [earlier[prompt]] if earlier[prompt] else []
            sampling_params.seed = seed_of(seed, len(prompt), *candidate)
            earlier[prompt] += 1
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
        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        entries = (await self._generate(token_ids, parameters)).prompt_logprobs
        return [entry[token].logprob for entry, token in zip(entries[1:], token_ids[1:], strict=True)]

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


def _with_log_probs(sample: dict, drawn: dict[tuple[int, tuple[int, ...]], list[float]]) -> dict:
    """Return an executor's sample with a log-prob for each token, 0 for tokens that the policy did not write.

    Upstream's executor leaves out turns for which the agent gave parameters of its own without log-probs.

    Raises:
        ValueError: an action has tokens that no generation has drawn.
    """
    tokens, log_probs = sample["observation_tokens"], sample["rollout_log_probs"]
    if log_probs is None or len(log_probs) == len(tokens):
        return sample
    whole = [0.0] * len(tokens)
    for start, end in sample["action_ranges"]:
        turn = drawn.get((start, tuple(tokens[start:end])))
        if turn is None:
            raise ValueError(f"the agent returned tokens {start} to {end} as its action, which no generation has drawn")
        whole[start:end] = turn
    return sample | {"rollout_log_probs": whole}
