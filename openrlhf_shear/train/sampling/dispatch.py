"""Prompts in flight: each goes to the least busy engine, and to another one if that dies."""

from collections import Counter
from collections.abc import Iterator, Sequence

import ray
from openrlhf.utils.logging_utils import init_logger

from openrlhf_shear.train.carriers import Prompt
from openrlhf_shear.train.sampling.engines import Engines, EnginesLostError, is_dead, last_line

logger = init_logger(__name__)
_POLL_SECONDS = 1.0
_MOST_REVIVALS = 5  # rounds per step in which engines may die


class Dispatch:
    """Prompts that wait for engines or are with them; true while there are any."""

    def __init__(self, engines: Engines, request: tuple, held: int):
        """
        Args:
            engines: the run's engines.
            request: the arguments of the engines' `generate_responses` after the prompt.
            held: responses of a prompt, if idle engines wait until all requests of a batch are there; else 0.
        """
        self._engines, self._request, self._held = engines, request, held
        self._waiting: list[Prompt] = []
        self._pending: dict[ray.ObjectRef, tuple[Prompt, ray.actor.ActorHandle]] = {}
        self._revivals, self._has_lost = 0, False

    def __bool__(self) -> bool:
        return bool(self._waiting or self._pending)

    def add(self, prompts: Sequence[Prompt]) -> None:
        self._waiting += prompts

    def results(self) -> Iterator[tuple[Prompt, int, list[dict]]]:
        """Send waiting prompts; yield a prompt with its engine's number and responses, if one is there in a second.

        Raises:
            EnginesLostError: engines die again and again, or may not be restarted.
        """
        if self._has_lost and not self._pending:  # the live engines have finished: weights can be sent
            self._revivals += 1
            if self._revivals > _MOST_REVIVALS:
                raise EnginesLostError(f"engines died in {self._revivals} rounds of the same step; see their logs")
            self._engines.revive()
            self._has_lost = False
        if self._waiting and not self._has_lost:
            self._send()
        ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=_POLL_SECONDS)
        for ref in ready:
            prompt, engine = self._pending.pop(ref)
            try:
                responses = ray.get(ref)
            except ray.exceptions.RayError as error:
                if not is_dead(error):
                    raise
                self._engines.require_revival()
                logger.warning(f"an engine died, a prompt of it is sent again: {last_line(error)}")
                self._waiting.append(prompt)
                self._has_lost = True
            else:
                yield prompt, self._engines.handles.index(engine), responses

    def _send(self) -> None:
        busy = [engine for _, engine in self._pending.values()]
        load, engines = {engine: busy.count(engine) for engine in self._engines.handles}, []
        for _ in self._waiting:
            engine = min(load, key=load.get)
            load[engine] += 1
            engines.append(engine)
        if self._held and not busy:
            counts = [(engine, self._held * prompts) for engine, prompts in Counter(engines).items()]
            self._engines.persist("hold", lambda: ray.get([engine.hold.remote(count) for engine, count in counts]))
        for prompt, engine in zip(self._waiting, engines, strict=True):
            self._pending[engine.generate_responses.remote(prompt, *self._request)] = (prompt, engine)
        self._waiting = []
