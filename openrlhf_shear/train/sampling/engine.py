"""Rollout engine of OpenRLHF with a seed per rollout and turn, batches that start together, and checks of itself."""

import asyncio
import contextlib
import functools
import inspect
from collections import Counter
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field

import numpy as np
import ray
from openrlhf.trainer.ray.vllm_engine import RolloutRayActor
from openrlhf.utils.utils import get_tokenizer
from openrlhf.utils.vlm_utils import process_prompt_with_images
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_shear.rewards.settings import RewardSettings
from openrlhf_shear.train.carriers import Prompt
from openrlhf_shear.train.nodes import worker
from openrlhf_shear.train.sampling.grading import Grading
from openrlhf_shear.train.sampling.order import seed_of
from openrlhf_shear.train.sampling.rollout_rewards import VERDICT
from openrlhf_shear.train.upstream import plain_class

_POLL_SECONDS = 1.0
_GATHER_SECONDS = 0.01  # between checks whether a batch is complete


@dataclass
class _Rollout:
    """Rollout in progress: how to sample it, and what it has sampled so far."""

    sampling: SamplingParams
    priority: int  # the smallest starts first
    continued: Counter[tuple[int, ...]] = field(default_factory=Counter)  # how often, by the tokens so far
    # log-probs of its generations, by the number of tokens before them and their tokens
    log_probs: dict[tuple[int, tuple[int, ...]], list[float]] = field(default_factory=dict)


_rollout: ContextVar[_Rollout | None] = ContextVar("rollout", default=None)  # of the task that samples it


class RewardRolloutActor(plain_class(RolloutRayActor)):
    """Engine of OpenRLHF with prompts as token ids, `Grading`, a seed per rollout, and checks of its own state."""

    reward: RewardSettings | None = None  # None where rewards come from a model
    log_probs_mode: str | None = None  # vLLM's mode; None if log-probs are not requested
    fast_tokenizer = True  # not --data.disable_fast_tokenizer

    async def __init__(self, *args, agent_func_path: str | None = None, remote_rm_url=None, **kwargs):
        # After a restart by Ray the actor has the base model's weights: it samples nothing until it gets the policy's.
        self._stale = ray.get_runtime_context().was_current_actor_reconstructed
        kwargs["logprobs_mode"] = self.log_probs_mode or "raw_logprobs"  # upstream: always processed
        worker.bind_engine_core()
        kwargs["scheduling_policy"] = "priority"  # `Watched.generate` sets priorities
        # Without the URL upstream does not load a reward file into this process.
        await super().__init__(*args, agent_func_path=agent_func_path, remote_rm_url=None, **kwargs)
        self._failed = 0  # samples that raised since `hold`
        self._release: asyncio.Task | None = None
        self.llm = Watched(self.llm)
        self._has_agent = bool(agent_func_path)
        self._grading = Grading(remote_rm_url, self.reward) if remote_rm_url and not agent_func_path else None

    @functools.cached_property
    def tokenizer(self):
        """The policy's tokenizer, or a vision model's processor, as the driver has it."""
        return get_tokenizer(self.kwargs["model"], None, use_fast=self.fast_tokenizer)

    async def generate_responses(
        self, prompt: Prompt, sampling: SamplingParams, max_length: int, num_samples: int
    ) -> list[dict]:
        """Return the responses to a prompt, as upstream's executors do, each sampled with a separate seed.

        Args:
            sampling: parameters without a seed; `max_tokens` None means what the prompt leaves of `max_length`.
            max_length: tokens of prompt and response together.
        """
        vision = {}
        if prompt.ids is None and not self._has_agent:
            vision = self._vision(prompt, max_length - (sampling.max_tokens or 1))

        async def sample_of(number: int) -> dict:
            seeded = copy(sampling)
            seeded.seed = seed_of(seed_of(*prompt.place), number)
            _rollout.set(_Rollout(seeded, prompt.place[-1] * num_samples + number))
            try:
                if self._has_agent:
                    return await self._turns(prompt, seeded, max_length)
                return await self._turn(prompt, seeded, max_length, **vision)
            except BaseException:
                self._failed += 1
                raise

        return await asyncio.gather(*map(sample_of, range(num_samples)))

    def _vision(self, prompt: Prompt, room: int) -> dict:
        """Return a prompt's token ids, its images, and its inputs for training; upstream makes them for each sample."""
        ids, inputs, images = process_prompt_with_images(self.tokenizer, prompt.text, prompt.images)
        if len(ids) > room:
            raise ValueError(
                f"a prompt with images has {len(ids)} tokens, more than {room}: use a larger --data.max_len"
            )
        return {"ids": ids, "images": images, "inputs": inputs}

    async def _turn(
        self, prompt: Prompt, sampling: SamplingParams, max_length: int, ids=None, images=None, inputs=None
    ) -> dict:
        """Return a response of one turn in arrays, as upstream's single-turn executor in lists, with its verdict."""
        ids = prompt.ids if ids is None else ids
        if sampling.max_tokens is None:
            sampling.max_tokens = max(1, max_length - len(ids))
        sampling.output_kind = RequestOutputKind.FINAL_ONLY
        sampling.detokenize, sampling.flat_logprobs = False, True  # nobody reads text or dictionaries
        output = await self.generate(ids, sampling, {"image": images} if images else None)
        (drawn,) = output.outputs
        tokens, log_probs = np.array([*ids, *drawn.token_ids]), None
        if drawn.logprobs is not None:
            log_probs = np.zeros(len(tokens), np.float32)
            log_probs[len(ids) :] = drawn.logprobs.logprobs
        response = {"observation_tokens": tokens, "action_ranges": [(len(ids), len(tokens))]}
        response |= {"rollout_log_probs": log_probs, "truncated": drawn.finish_reason == "length"}
        response |= {"mm_train_inputs": inputs}
        if self._grading is not None:
            query = self.tokenizer.decode(tokens, skip_special_tokens=False)
            response[VERDICT] = await self._grading.grade(query, prompt.text, prompt.label)
        return response

    async def _turns(self, prompt: Prompt, sampling: SamplingParams, max_length: int) -> dict:
        """Return the response of the agent's executor, with a log-prob for each token, 0 for those of the environment.

        Upstream's executor leaves out turns for which the agent gave parameters of its own without log-probs.

        Raises:
            ValueError: an action has tokens that no generation has drawn.
        """
        request = {"prompt": prompt.text, "label": prompt.label, "images": prompt.images, "llm_engine": self}
        request |= {"sampling_params": sampling, "max_length": max_length, "hf_tokenizer": self.tokenizer}
        sample = await self.executor.execute(**request)
        tokens, log_probs = sample["observation_tokens"], sample["rollout_log_probs"]
        if log_probs is None or len(log_probs) == len(tokens):
            return sample
        whole = [0.0] * len(tokens)
        for start, end in sample["action_ranges"]:
            turn = _rollout.get().log_probs.get((start, tuple(tokens[start:end])))
            if turn is None:
                raise ValueError(
                    f"the agent returned tokens {start} to {end} as its action, but no generation drew them"
                )
            whole[start:end] = turn
        return sample | {"rollout_log_probs": whole}

    async def generate(self, prompt_token_ids, sampling_params, multi_modal_data=None):
        """Generate as upstream does, for executors; each turn, and each candidate of a turn, gets a new seed."""
        rollout = _rollout.get()
        if rollout is None:  # from outside of a rollout
            return await self._generate(prompt_token_ids, sampling_params, multi_modal_data)
        if sampling_params.logprobs is None:  # an agent's own parameters
            sampling_params.logprobs = rollout.sampling.logprobs
        seed = rollout.sampling.seed if sampling_params.seed is None else sampling_params.seed
        sampling_params = copy(sampling_params)
        prompt = tuple(prompt_token_ids)
        candidate = [rollout.continued[prompt]] if rollout.continued[prompt] else []
        sampling_params.seed = seed_of(seed, len(prompt), *candidate)
        rollout.continued[prompt] += 1
        output = await self._generate(prompt_token_ids, sampling_params, multi_modal_data)
        for drawn in output.outputs if self._has_agent else ():
            if drawn.logprobs is not None:
                tokens = tuple(drawn.token_ids)
                log_probs = [entry[token].logprob for entry, token in zip(drawn.logprobs, tokens, strict=True)]
                rollout.log_probs[len(prompt), tokens] = log_probs
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
        final = {"output_kind": RequestOutputKind.FINAL_ONLY, "detokenize": False}
        output = await self._generate(prompt_ids, SamplingParams(**sampling, **final))
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
        self.llm.shutdown(timeout=0.0)  # it does not hear SIGTERM (patient_node)


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
        """Generate as vLLM does; waiting requests start in their order in the run, whatever arrived first.

        The samples of a prompt are neighbours, so that vLLM's cache of prefixes has their prompt.
        """
        rollout = _rollout.get()
        priority = (sampling_params.seed or 0) if rollout is None else rollout.priority
        return self._llm.generate(prompt, sampling_params, request_id, priority=priority)

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
