"""Batches of a run, between generation and update: made on demand, or ahead of the trainer in a thread.

A sampled batch enters the accounts as a whole. From then until training, every checkpoint contains its rollouts. A
batch in progress is in neither: a resumed run samples it again from its prompts.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields

from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_shear.train.carriers import Accounts, Batch, RunState
from openrlhf_shear.train.sampling.rollout_rewards import is_failed
from openrlhf_shear.train.sampling.samples import ShearSamplesGenerator


class Batches:
    """Source of batches that generates on demand.

    Attributes:
        accounts: the accounts of all rollouts that have left generation.
    """

    def __init__(self, generator: ShearSamplesGenerator, episodes: int, generate_kwargs: dict):
        self.accounts = Accounts()
        self._generator, self._episodes, self._generate_kwargs = generator, episodes, generate_kwargs
        self._ready: deque[Batch] = deque()
        self.restore({"episode": 0, "consumed": 0})

    def restore(self, states: RunState) -> None:
        """Restore the result of `state`; the next batches use its waiting rollouts first."""
        self._reserve = self._generator.reserve = [Experience(**sample) for sample in states.get("waiting", [])]
        if "ledger" in states:
            self.accounts = Accounts.resumed(states["ledger"])
        self._place = (states["episode"], states["consumed"])
        self._stream = self._batches(*self._place)

    def state(self) -> RunState:
        """Return the state for a checkpoint: the place, the accounts, and the waiting rollouts."""
        self._collect()
        episode, consumed = self._place
        samples = self._waiting
        if not samples and consumed >= self._generator.prompts:
            episode, consumed = episode + 1, 0
        return {
            **{"episode": episode, "consumed": consumed},
            "total_consumed_prompts": episode * self._generator.prompts + consumed,
            "ledger": self.accounts.state(self.waiting),
            "waiting": [{f.name: getattr(sample, f.name) for f in fields(Experience)} for sample in samples],
        }

    def metrics(self) -> dict[str, float]:
        """Return the accounts' metrics, which add up."""
        self._collect()
        return self.accounts.metrics(self.waiting)

    @property
    def waiting(self) -> int:
        """Number of rollouts with a reward that wait for later steps."""
        return sum(not is_failed(sample) for sample in self._waiting)

    @property
    def _waiting(self) -> list[Experience]:
        return [*(sample for batch in self._ready for sample in batch.samples), *self._reserve]

    def next(self) -> Batch | None:
        """Return the next batch; None at the end of the run."""
        self._generator.check_stop()
        batch = next(self._stream, None)
        if batch is not None:
            self._receive(batch)
            self._ready.popleft()
        return batch

    def undisturbed(self) -> AbstractContextManager[None]:
        """Return a context in which nothing is generated."""
        return nullcontext()

    def close(self) -> None:
        """Stop generation."""

    def _collect(self) -> None:
        """Receive batches that were finished meanwhile."""

    def _receive(self, batch: Batch) -> None:
        self._ready.append(batch)
        self._place, self._reserve = batch.place, batch.reserve
        self.accounts.add(batch.counts)

    def _batches(self, first: int, consumed: int) -> Iterator[Batch]:
        generator = self._generator
        for episode in range(first, self._episodes):
            generator.start_episode(episode, consumed if episode == first else 0)
            while not generator.ended:
                started = time.time()
                samples, pass_rate = generator.generate_samples(**self._generate_kwargs)
                last = episode + 1 >= self._episodes and generator.consumed >= generator.prompts
                counts, seconds, place = generator.take_counts(), time.time() - started, (episode, generator.consumed)
                yield Batch(samples, pass_rate, counts, seconds, place, list(generator.reserve), last)


class BatchesAhead(Batches):
    """Source of batches that generates ahead in a thread, while the trainer trains (`--train.async_enable`).

    As in upstream's asynchronous trainer, a batch starts when fewer than `room` wait, so its weights are at most
    `room` steps behind. The thread shares the trainer's process, so there are one set of accounts and one
    place in the data.
    """

    def __init__(self, *args, room: int):
        super().__init__(*args)
        self._room = threading.Semaphore(room)
        self._turns = Turns()
        self._done: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()  # None marks the end
        self._thread = threading.Thread(target=self._work, name="generation", daemon=True)
        self._ended, self._error = False, None

    def next(self) -> Batch | None:
        """Return the next batch; None at the end of the run.

        Raises:
            Exception: the error that ended generation, once all earlier batches are used up.
        """
        self._generator.check_stop()
        if self._thread.ident is None:
            self._thread.start()
        self._collect()
        while not (self._ready or self._ended):
            self._note(self._done.get())
        if self._ready:
            self._room.release()
            return self._ready.popleft()
        if self._error is not None:
            raise self._error
        return None

    def undisturbed(self) -> AbstractContextManager[None]:
        return self._turns.trainer()

    def close(self) -> None:
        self._generator.check_stop = _stop
        self._room.release()

    def _collect(self) -> None:
        while not self._done.empty():
            self._note(self._done.get())

    def _note(self, batch: Batch | None) -> None:
        if batch is None:
            self._ended = True
        else:
            self._receive(batch)

    def _work(self) -> None:
        try:
            while True:
                self._room.acquire()
                self._generator.check_stop()
                with self._turns.generation():
                    batch = next(self._stream, None)
                    if batch is None:
                        break
                    self._done.put(batch)
        except BaseException as error:
            self._error = error  # for the trainer to raise
        finally:
            self._done.put(None)


class Turns:
    """Lock between generation and the trainer, who both need the engines; the trainer goes first.

    Who waits for the engines stands in the door: behind a waiting trainer no batch begins.
    """

    def __init__(self):
        self.door, self._engines = threading.Lock(), threading.Lock()

    @contextmanager
    def generation(self) -> Iterator[None]:
        with self.door:
            self._engines.acquire()
        try:
            yield
        finally:
            self._engines.release()

    @contextmanager
    def trainer(self) -> Iterator[None]:
        with self.door, self._engines:
            yield


class _ClosedError(RuntimeError):
    """Error that ends the generation thread when the run is over."""


def _stop() -> None:
    raise _ClosedError
