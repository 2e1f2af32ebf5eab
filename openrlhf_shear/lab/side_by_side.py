"""Runs trained side by side in one process, which draw their tokens together (`lab.engine`).

Each run trains in a thread. Threads compute one at a time, since Python does so anyway. A thread that asks for tokens
waits until all others that still train ask too.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial

import torch

from openrlhf_shear.lab.engine import Asked, Engine


class Together:
    """Runs that draw together: the last one to ask draws for all.

    torch's random state on the CPU is each run's own.
    """

    def __init__(self, runs: int):
        self._turn = threading.Condition()  # whoever holds it computes
        self._training = runs
        self._requests: list[tuple[Asked, list[torch.Tensor]]] = []  # what is asked, and room for the result
        self._engine: Engine | None = None
        self._failed: BaseException | None = None

    def draw(self, asked: Asked, eos: int, pad: int) -> torch.Tensor:
        """Return the responses (B, T) int64, padded after `<eos>`; to be called in a run."""
        self._engine = self._engine or Engine(eos, pad)
        request, random_state = (asked, []), torch.get_rng_state()
        self._requests.append(request)
        self._serve()
        self._turn.wait_for(lambda: request[1] or self._failed)
        torch.set_rng_state(random_state)  # others have computed
        if self._failed:
            raise RuntimeError("another run failed") from self._failed
        return request[1][0]

    def run(self, work: Callable[[], None]) -> None:
        """Do the work of one run."""
        with self._turn:
            for part in (work, self._leave):
                try:
                    part()
                except BaseException as error:
                    self._failed = self._failed or error
            self._turn.notify_all()

    def _leave(self) -> None:
        self._training -= 1
        self._serve()

    def _serve(self) -> None:
        if self._failed or not self._requests or len(self._requests) < self._training:
            return
        waiting, self._requests = self._requests, []
        for rows in dict.fromkeys(len(asked.prompts) for asked, _ in waiting):
            alike = [request for request in waiting if len(request[0].prompts) == rows]
            drawn = self._engine.draw([asked for asked, _ in alike])
            for (_, room), responses in zip(alike, drawn, strict=True):
                room.append(responses)
        self._turn.notify_all()

    def raise_failure(self) -> None:
        if self._failed:
            raise self._failed


def train_together(works: Sequence[Callable[[Together], None]]) -> None:
    """Do all work, each in a thread; raise the first error of any, after the others have stopped."""
    together = Together(len(works))
    threads = [threading.Thread(target=together.run, args=(partial(work, together),)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together.raise_failure()
