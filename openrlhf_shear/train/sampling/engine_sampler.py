"""Sampler of evaluations on vLLM engines: separate engines placed as in training, or a training run's engines."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import ray
from openrlhf.utils.logging_utils import init_logger
from ray.util.placement_group import PlacementGroup

from openrlhf_shear.data.prompts import PromptFormat
from openrlhf_shear.rewards.verdict import Failure, Verdict
from openrlhf_shear.sampling.plan import Plan
from openrlhf_shear.sampling.sampler import EngineSettings, Output, Request, Sampling, question_ids
from openrlhf_shear.train.sampling.engines import is_dead, last_line

logger = init_logger(__name__)
IN_FLIGHT = 512  # requests per engine: enough to keep it full
_STOP_SECONDS = 1.0
TRIES = 3  # engines that a request may die with


class EngineSampler:
    """Sampler that spreads requests over engines; the requests of a dead engine go to the others.

    Each request has a separate seed, so the engine and the order do not matter. vLLM promises the same tokens for the
    same seed on the same hardware and version. Batches of other sizes may round differently (bfloat16 on most GPUs), so
    a choice between nearly equal probabilities can still differ.
    """

    def __init__(
        self,
        engines: Sequence[ray.actor.ActorHandle],
        tokenizer,
        sampling: Sampling,
        prompt_format: PromptFormat,
        room: int,
        check_stop: Callable[[], None] = lambda: None,
    ):
        """
        Args:
            room: tokens for prompt, prefix and completion together. A completion gets all of the sampling's tokens,
                or what prompt and prefix leave of the room.
            check_stop: called about once a second; it raises to stop.
        """
        self._engines, self._tokenizer, self._sampling = list(engines), tokenizer, sampling
        self._format, self._room, self._check_stop = prompt_format, room, check_stop

    def __call__(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Output | Verdict]]:
        waiting = deque((request, 0) for request in requests)
        running: dict[ray.ObjectRef, tuple[Request, int, ray.actor.ActorHandle]] = {}
        load = {engine: 0 for engine in self._engines}
        while waiting or running:
            while waiting and load and min(load.values()) < IN_FLIGHT:
                request, tries = waiting.popleft()
                prefix = request.question.prefix or []
                prompt = question_ids(self._tokenizer, request.question, self._format) + prefix
                left = min(self._room - len(prompt), self._sampling.max_new_tokens)
                if left < 1:
                    yield request, Verdict(None, failure=Failure.NO_ROOM)
                    continue
                engine = min(load, key=load.get)
                parameters = {"temperature": self._sampling.temperature, "top_p": self._sampling.top_p}
                ref = engine.complete.remote(prompt, parameters | {"max_tokens": left, "seed": request.seed})
                running[ref], load[engine] = (request, tries, engine), load[engine] + 1
            if not running:
                yield from ((request, Verdict(None, failure=Failure.NO_ENGINE)) for request, _ in waiting)
                return
            self._check_stop()
            ready, _ = ray.wait(list(running), num_returns=1, timeout=_STOP_SECONDS)
            if not ready:
                continue
            (ref,) = ready
            request, tries, engine = running.pop(ref)
            if engine in load:
                load[engine] -= 1
            try:
                tokens, truncated = ray.get(ref)
            except ray.exceptions.RayError as error:
                if not is_dead(error):
                    logger.warning(f"a completion failed: {last_line(error)}")
                    which = type(getattr(error, "cause", error)).__name__
                    yield request, Verdict(None, failure=Failure.ENGINE_RAISED, which=which)
                    continue
                if load.pop(engine, None) is not None:
                    logger.warning(f"an engine died, {len(load)} are left: {last_line(error)}")
                if tries + 1 < TRIES:
                    waiting.append((request, tries + 1))
                else:
                    yield request, Verdict(None, failure=Failure.ENGINE_DIED)
            else:
                prefix = request.question.prefix or []
                text = self._tokenizer.decode(prefix + tokens, skip_special_tokens=True)
                yield request, Output(text, len(tokens), truncated, tokens)


@contextmanager
def started_engines(
    plan: Plan, engines: EngineSettings, connect: Callable[[], PlacementGroup | None]
) -> Iterator[EngineSampler]:
    """Start vLLM engines for an evaluation as training does: in one placement group, on a cluster or here.

    Args:
        connect: joins the cluster with OpenRLHF hooked (`launch.connect`), once the plan is checked. It returns a
            placement group to share, or None to create one.

    Raises:
        ValueError: the tokenizer has no chat template.
    """
    from transformers import AutoConfig, AutoTokenizer

    trusted = engines.trust_remote_code
    tokenizer = AutoTokenizer.from_pretrained(plan.model, trust_remote_code=trusted)
    if plan.prompt_format.chat and not tokenizer.chat_template:
        raise ValueError(f"--model {plan.model} has no chat template; use --prompt-format plain")
    config = AutoConfig.from_pretrained(plan.model, trust_remote_code=trusted)
    positions = config.get_text_config().max_position_embeddings
    longest = max(len(question_ids(tokenizer, question, plan.prompt_format)) for question in plan.questions)
    room = plan.max_model_len or min(positions, longest + plan.longest_prefix + plan.sampling.max_new_tokens)
    if longest >= room:
        logger.warning(f"prompts of up to {longest} tokens leave no room for an answer in {room}; they fail")
    elif plan.longest_prefix and room < longest + plan.longest_prefix + plan.sampling.max_new_tokens:
        logger.warning(f"continuations of long prefixes get fewer tokens than others: the limit is {room} in all")

    placement_group = connect()
    import openrlhf.trainer.ray.vllm_engine as vllm_engine

    handles = vllm_engine.create_vllm_engines(
        num_engines=engines.engines,
        tensor_parallel_size=engines.tensor_parallel_size,
        pretrain=plan.model,
        seed=plan.sampling.seed,
        full_determinism=False,
        enable_prefix_caching=True,
        enforce_eager=engines.enforce_eager or os.environ.get("DS_ACCELERATOR") == "cpu",  # `cpu.backend` sets it
        max_model_len=room,
        shared_pg=placement_group,
        gpu_memory_utilization=engines.gpu_memory_utilization,
    )
    try:
        yield EngineSampler(handles, tokenizer, plan.sampling, plan.prompt_format, room)
    finally:
        with suppress(ray.exceptions.RayError):  # a dead engine has nothing left to release
            ray.get([handle.shut_down.remote() for handle in handles])
        for handle in handles:
            ray.kill(handle)
