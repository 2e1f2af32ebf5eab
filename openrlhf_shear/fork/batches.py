"""The batches of a run, between generation and update: made when the trainer asks, or ahead of it in a thread.

What is sampled enters the ledger with its whole batch, and from then on until it is trained on every checkpoint has it.
What is under way is in neither: a run that goes on from a checkpoint samples it again, from its prompts.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields

from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_shear.fork.samples import LedgerSamplesGenerator, is_failed
from openrlhf_shear.rewards.ledger import Ledger


@dataclass(frozen=True)
class Batch:
    """The rollouts of a step, and where the run stands after them."""

    samples: list[Experience]  # whole groups in the order of their prompts; none where nothing passed the filter
    pass_rate: float | None  # the share of prompts that did (%)
    counts: Ledger  # of all that was sampled for it
    seconds: float  # of generation
    place: tuple[int, int]  # the episode, and how many prompts of it are consumed
    kept: list[Experience]  # accepted, for later batches
    last: bool  # no prompt of the run is left


class Batches:
    """Made when the trainer asks.

    Attributes:
        ledger: of what has left generation.
    """

    def __init__(self, generator: LedgerSamplesGenerator, episodes: int, generate_kwargs: dict):
        """`episodes`: of the run."""
        self.ledger = Ledger()
        self._generator, self._episodes, self._generate_kwargs = generator, episodes, generate_kwargs
        self._ready: deque[Batch] = deque()
        self.restore({"episode": 0, "consumed": 0})

    def restore(self, states: dict) -> None:
        """What `state` gave; batches are made of what waited there first."""
        self._kept = self._generator.kept = [Experience(**sample) for sample in states.get("waiting", [])]
        if "ledger" in states:
            self.ledger = Ledger.resumed(states["ledger"], self.waiting)
        self._place = (states["episode"], states["consumed"])
        self._stream = self._made(*self._place)

    def state(self) -> dict:
        """For a checkpoint: the place, the ledger, and the rollouts that wait."""
        self._collect()
        episode, consumed = self._place
        samples = self._waiting
        if not samples and consumed >= self._generator.prompts:
            episode, consumed = episode + 1, 0
        return {
            **{"episode": episode, "consumed": consumed},
            "total_consumed_prompts": episode * self._generator.prompts + consumed,
            "ledger": self.ledger.state(self.waiting),
            "waiting": [{f.name: getattr(sample, f.name) for f in fields(Experience)} for sample in samples],
        }

    def metrics(self) -> dict[str, float]:
        """The ledger's, which add up."""
        self._collect()
        return self.ledger.metrics(self.waiting)

    @property
    def waiting(self) -> int:
        """Rollouts with a reward that are there for later steps."""
        return sum(not is_failed(sample) for sample in self._waiting)

    @property
    def _waiting(self) -> list[Experience]:
        return [*(sample for batch in self._ready for sample in batch.samples), *self._kept]

    def next(self) -> Batch | None:
        """The next one; None at the end of the run."""
        self._generator.check_stop()
        batch = next(self._stream, None)
        if batch is not None:
            self._receive(batch)
            self._ready.popleft()
        return batch

    def undisturbed(self) -> AbstractContextManager[None]:
        """While nothing is generated."""
        return nullcontext()

    def close(self) -> None:
        """Nothing more is generated."""

    def _collect(self) -> None:
        """What has been made meanwhile."""

    def _receive(self, batch: Batch) -> None:
        self._ready.append(batch)
        self._place, self._kept = batch.place, batch.kept
        self.ledger.add(batch.counts)

    def _made(self, first: int, consumed: int) -> Iterator[Batch]:
        generator = self._generator
        for episode in range(first, self._episodes):
            generator.start_episode(episode, consumed if episode == first else 0)
            while not generator.ended:
                started = time.time()
                samples, pass_rate, *_ = generator.generate_samples(**self._generate_kwargs)
                last = episode + 1 >= self._episodes and generator.consumed >= generator.prompts
                made = (generator.take_counts(), time.time() - started)
                yield Batch(samples, pass_rate, *made, (episode, generator.consumed), list(generator.kept), last)


class BatchesAhead(Batches):
    """Made in a thread (`--train.async_enable`), the next ones while the trainer trains.

    As in upstream's asynchronous trainer a batch is begun when fewer than `room` wait, so its weights are at most
    `room` steps behind. In one process with the trainer, so that there is one ledger, and one place in the data.
    """

    def __init__(self, *args, room: int):
        super().__init__(*args)
        self._room = threading.Semaphore(room)
        self._turns = _Turns()
        self._done: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()  # None: there will be no more
        self._thread = threading.Thread(target=self._work, name="generation", daemon=True)
        self._ended, self._error = False, None

    def next(self) -> Batch | None:
        """The next one; None at the end of the run.

        Raises:
            Exception: what broke generation off, when all that was made before is used up.
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


class _Turns:
    """Either a batch is generated, or the trainer has the engines, who goes first."""

    def __init__(self):
        self._changed = threading.Condition()
        self._generates = self._asked = False

    @contextmanager
    def generation(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._asked)
            self._generates = True
        try:
            yield
        finally:
            with self._changed:
                self._generates = False
                self._changed.notify_all()

    @contextmanager
    def trainer(self) -> Iterator[None]:
        with self._changed:
            self._asked = True
            self._changed.wait_for(lambda: not self._generates)
        try:
            yield
        finally:
            with self._changed:
                self._asked = False
                self._changed.notify_all()


class _ClosedError(RuntimeError):
    """The run has ended."""


def _stop() -> None:
    raise _ClosedError
