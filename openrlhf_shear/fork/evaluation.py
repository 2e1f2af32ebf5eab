"""vLLM engines as an evaluation's sampler: their own, placed as in training, or those of a training run."""

from __future__ import annotations

import filecmp
import os
import shutil
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import ray
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from openrlhf.utils.logging_utils import init_logger
from ray.util.placement_group import PlacementGroup
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_shear.evaluation.run import evaluate
from openrlhf_shear.evaluation.suite import SUITE_AVERAGE, suite_plan
from openrlhf_shear.fork.launch import connect
from openrlhf_shear.sampling.plan import Grading, Plan
from openrlhf_shear.sampling.sampler import (
    DIED,
    NO_ENGINE,
    NO_ROOM,
    Engines,
    Failure,
    Output,
    Request,
    Sampling,
    prompt_ids,
)
from openrlhf_shear.sampling.store import Store

logger = init_logger(__name__)
IN_FLIGHT = 512  # requests an engine: enough to keep it full
TRIES = 3  # engines that a request may die with


class EngineSampler:
    """Spreads requests over engines. One that dies is left out, and its requests go to the others.

    Each request has a seed of its own, so which engine draws it and in which order does not matter. vLLM promises the
    same tokens for the same seed on the same hardware and version; where batches of other sizes round differently
    (bfloat16 on most GPUs), a token whose probabilities are nearly equal can still differ.
    """

    def __init__(self, engines: Sequence[ray.actor.ActorHandle], tokenizer, sampling: Sampling, chat: bool, room: int):
        """
        Args:
            chat: put messages through the tokenizer's chat template; else their texts, a blank line between them.
            room: tokens of prompt and completion.
        """
        self._engines, self._tokenizer, self._sampling = list(engines), tokenizer, sampling
        self._chat, self._room = chat, room

    def __call__(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Output | Failure]]:
        waiting = deque((request, 0) for request in requests)
        running: dict[ray.ObjectRef, tuple[Request, int, ray.actor.ActorHandle]] = {}
        load = {engine: 0 for engine in self._engines}
        while waiting or running:
            while waiting and load and min(load.values()) < IN_FLIGHT:
                request, tries = waiting.popleft()
                prefix = request.question.prefix or []
                prompt = prompt_ids(self._tokenizer, request.question, self._chat) + prefix
                left = min(self._room - len(prompt), self._sampling.max_new_tokens - len(prefix))
                if left < 1:
                    yield request, Failure(NO_ROOM)
                    continue
                engine = min(load, key=load.get)
                ref = engine.complete.remote(prompt, self._parameters(request, left))
                running[ref], load[engine] = (request, tries, engine), load[engine] + 1
            if not running:
                yield from ((request, Failure(NO_ENGINE)) for request, _ in waiting)
                return
            (ref,), _ = ray.wait(list(running), num_returns=1)
            request, tries, engine = running.pop(ref)
            if engine in load:
                load[engine] -= 1
            try:
                tokens, truncated = ray.get(ref)
            except ray.exceptions.RayError as error:
                cause = getattr(error, "cause", error)
                # vLLM's core is a process of its own; without it the actor lives on, and fails whatever it is asked.
                if not isinstance(cause, ray.exceptions.RayActorError | EngineDeadError):
                    logger.warning(f"a completion failed: {str(error).splitlines()[-1]}")
                    yield request, Failure(f"the engine raised {type(cause).__name__}")
                    continue
                if load.pop(engine, None) is not None:
                    logger.warning(f"an engine died, {len(load)} are left: {str(error).splitlines()[-1]}")
                if tries + 1 < TRIES:
                    waiting.append((request, tries + 1))
                else:
                    yield request, Failure(DIED)
            else:
                prefix = request.question.prefix or []
                text = self._tokenizer.decode(prefix + tokens, skip_special_tokens=True)
                yield request, Output(text, len(tokens), truncated, tokens)

    def _parameters(self, request: Request, left: int) -> dict:
        sampling = self._sampling
        return {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": left,
            "seed": request.seed,
        }


@contextmanager
def started_engines(
    plan: Plan, engines: Engines, placement_group: PlacementGroup | None = None
) -> Iterator[EngineSampler]:
    """vLLM engines of an evaluation's own, started as training's are: in one placement group, on a cluster or here.

    Args:
        placement_group: of who is connected, to start in, with others; None for one of their own.

    Raises:
        ValueError: the tokenizer has no chat template, or prompts do not fit.
        RuntimeError: the Ray cluster has too few (logical) GPUs.
    """
    from transformers import AutoConfig, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(plan.model)
    if plan.chat and not tokenizer.chat_template:
        raise ValueError(f"--model {plan.model} has no chat template; use --prompt-format plain")
    positions = AutoConfig.from_pretrained(plan.model).get_text_config().max_position_embeddings
    longest = max(len(prompt_ids(tokenizer, question, plan.chat)) for question in plan.questions)
    room = plan.max_model_len or min(positions, longest + plan.sampling.max_new_tokens)
    if longest >= room:
        logger.warning(f"prompts of up to {longest} tokens leave no room for an answer in {room}; these fail")

    if placement_group is None:
        connect(engines.device, engines.gpus)
    import openrlhf.trainer.ray.vllm_engine as vllm_engine

    handles = vllm_engine.create_vllm_engines(
        engines.count,
        engines.tensor_parallel_size,
        plan.model,
        plan.sampling.seed,
        False,
        True,
        engines.enforce_eager,
        room,
        placement_group,
        engines.gpu_memory_utilization,
    )
    try:
        yield EngineSampler(handles, tokenizer, plan.sampling, plan.chat, room)
    finally:
        with suppress(ray.exceptions.RayError):  # one that died has nothing left to give back
            ray.get([handle.shut_down.remote() for handle in handles])
        for handle in handles:
            ray.kill(handle)


class TrainingSuite:
    """The benchmarks of `--eval.suite`, asked of a training run's engines."""

    def __init__(self, args, engines, tokenizer):
        """Reads the questions, so that what is wrong with them shows before training.

        Args:
            args: OpenRLHF's nested namespace.

        Raises:
            DataError, ValueError: as `suite_plan`.
        """
        self._plan = suite_plan(args)
        self._folder = Path(args.ckpt.path) / "evaluations"
        reward = args.reward
        self._grading = Grading(reward.cores, reward.timeout, reward.memory_mb, reward.allow_unsandboxed)
        self._engines, self._sleeps = engines, args.vllm.enable_sleep
        self._sampler = EngineSampler(engines, tokenizer, self._plan.sampling, self._plan.chat, args.data.max_len)

    def interrupted(self, step: int) -> bool:
        """Whether the evaluation of this step never ended."""
        return not (self._folder / f"step{step}" / "results.json").exists()

    def evaluate(self, step: int, go_on: bool = False) -> dict[str, float]:
        """The metrics of the policy as the engines have it: `suite/NAME`, avg@k, and `suite/average` over them.

        The completions and results.json are kept in `CKPT_PATH/evaluations/stepN`.

        Args:
            go_on: with the completions of an interrupted evaluation of the very same weights.
        """
        folder = self._folder / f"step{step}"
        if not go_on:
            shutil.rmtree(folder, ignore_errors=True)  # of a run that has gone back to an older checkpoint
        plan = replace(self._plan, model=f"{self._plan.model}, step {step}")
        if self._sleeps:
            batch_vllm_engine_call(self._engines, "wake_up")
        try:
            found = evaluate(plan, Store(folder), lambda: nullcontext(self._sampler), self._grading)
        finally:
            if self._sleeps:
                batch_vllm_engine_call(self._engines, "sleep")
        _share(folder / "questions.jsonl", self._folder / "questions.jsonl")
        rows = found["benchmarks"]
        scores = {name: row[f"avg@{row['k']}"] for name, row in rows.items()}
        for name, row in rows.items():
            if row["failed"]:
                logger.warning(f"step {step}: {name} lacks {sum(row['failed'].values())} verdicts: {row['failed']}")
        details = {
            f"suite_{what}/{name}": float(row[what])
            for name, row in rows.items()
            for what in ("stderr", "timeouts", "truncated_fraction", "response_tokens_mean")
            if row[what] is not None
        }
        known = {f"suite/{name}": value for name, value in scores.items() if value is not None}
        if len(known) == len(scores):  # an average of some of them would be another metric
            known[SUITE_AVERAGE] = sum(scores.values()) / len(scores)
        return known | details


def _share(file: Path, common: Path) -> None:
    """One copy on the disk of what every evaluation asks: the tests of programs are large."""
    with suppress(OSError):  # no hard links here
        if not common.exists():
            os.link(file, common)
        elif filecmp.cmp(file, common, shallow=False):
            file.unlink()
            os.link(common, file)
