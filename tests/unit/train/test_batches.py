"""Batches made on demand and ahead: the ledger at every moment, checkpoints, turns and errors."""

import threading
import time
from dataclasses import dataclass, field
from itertools import chain

import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from processes import wait_until

from openrlhf_shear.train.carriers import FAILED, Accounts
from openrlhf_shear.train.sampling.batches import Batches, BatchesAhead, Turns
from openrlhf_shear.train.sampling.rollout_rewards import is_failed

SIZE, BATCH, SECONDS = 2, 2, 30.0  # rollouts a prompt, prompts a batch; until a test that hangs fails


def rollout(prompt: int) -> Experience:
    """A rollout of a prompt whose only token is its number; the reward of every fifth prompt failed."""
    info = {FAILED: torch.tensor([float(prompt % 5 == 4)])}
    return Experience(sequences=torch.tensor([[prompt]]), info=info)


@dataclass
class Generator:
    """As `ShearSamplesGenerator`, with three prompts sampled for batches of two."""

    prompts: int
    begun: int = 0  # batches
    check_stop: object = staticmethod(lambda: None)
    may_end: object = field(default_factory=lambda: threading.Semaphore(1000))  # batches that may be finished
    reserve: list = field(default_factory=list)
    counts: Accounts = field(default_factory=Accounts)

    def start_episode(self, episode, consumed):
        self.consumed = consumed

    @property
    def ended(self):
        return self.consumed >= self.prompts and not self.reserve

    def take_counts(self):
        return self.counts.take()

    def generate_samples(self, **kwargs):
        self.begun += 1
        assert self.may_end.acquire(timeout=SECONDS)
        self.check_stop()
        if len(self.reserve) < BATCH * SIZE:
            new = [rollout(p) for p in range(self.consumed, min(self.consumed + 3, self.prompts)) for _ in range(SIZE)]
            self.consumed = min(self.consumed + 3, self.prompts)
            self.counts.dispatched += len(new)
            self.counts.failed["timeout"] += sum(map(is_failed, new))
            self.reserve = self.reserve + new
        batch, self.reserve = self.reserve[: BATCH * SIZE], self.reserve[BATCH * SIZE :]
        return batch, None


def ahead(generator, room=1, episodes=1):
    return BatchesAhead(generator, episodes, {}, room=room)


def numbers(samples) -> list[int]:
    return [int(sample.sequences) for sample in samples[::SIZE]]


def trained_on(batches, most=100) -> list[list[int]]:
    """The prompts of up to `most` batches; after each the ledger adds up, or `metrics` raises."""
    seen = []
    while len(seen) < most and (batch := batches.next()):
        seen.append(numbers(batch.samples))
        batches.accounts.trained += sum(not is_failed(sample) for sample in batch.samples)
        metrics = batches.metrics()
        assert metrics["ledger/dispatched"] == sum(metrics[f"ledger/{k}"] for k in ("trained", "failed", "waiting"))
    return seen


@pytest.mark.parametrize("room", [None, 1, 2])
@pytest.mark.parametrize("stop_after", [1, 2, 3, 4, 5, 6])
def test_a_resumed_run_trains_on_every_prompt_once(room, stop_after):
    def make():
        generator = Generator(prompts=5)
        return Batches(generator, 2, {}) if room is None else ahead(generator, room, episodes=2)

    whole = trained_on(make())
    assert whole == [[0, 1], [2, 3], [4], [0, 1], [2, 3], [4]]
    first = make()
    before = trained_on(first, stop_after)
    states = first.state()
    first.close()
    second = make()
    second.restore(states)
    after = trained_on(second)
    assert list(chain(*before, *after)) == list(chain(*whole))
    assert (
        second.accounts.dispatched == 20 and second.accounts.failed == {"timeout": 4} and second.accounts.trained == 16
    )
    done = second.state()
    assert (done["episode"], done["consumed"], done["waiting"]) == (2, 0, [])


def test_what_waits_in_the_queue_is_in_the_checkpoint_and_what_is_under_way_is_in_neither():
    generator = Generator(prompts=8, may_end=threading.Semaphore(2))
    batches = ahead(generator, room=2)
    assert trained_on(batches, 1) == [[0, 1]]
    assert wait_until(lambda: generator.begun == 3)  # the second batch is there, the third one under way
    states = batches.state()
    kept = [int(sample["sequences"]) for sample in states["waiting"]][::SIZE]
    assert kept == [2, 3, 4, 5] and states["consumed"] == 6, "two prompts of a batch, and two for a later one"
    assert states["ledger"] == {
        **{"dispatched": 12, "filtered": 0, "trained": 4},
        **{"failed": {"timeout": 2}, "waiting": 6},
    }
    batches.close()


@pytest.mark.parametrize("room", [1, 2])
def test_as_many_batches_as_there_is_room_for_are_made_ahead(room):
    generator = Generator(prompts=100)
    batches = ahead(generator, room)
    for taken in range(1, 6):
        batches.next()
        assert wait_until(lambda taken=taken: generator.begun >= taken + room)
        time.sleep(0.01)
        assert generator.begun == taken + room
    batches.close()


def test_no_batch_is_begun_while_the_trainer_asks_for_the_engines_or_has_them():
    turns, seen, leave = Turns(), [], threading.Event()

    def trainer():
        with turns.trainer():
            seen.append("trainer")
            assert leave.wait(SECONDS)

    def generation():
        with turns.generation():
            seen.append("batch")

    with turns.generation():
        asking = threading.Thread(target=trainer)
        asking.start()
        assert wait_until(lambda: turns.door.locked())
        beginning = threading.Thread(target=generation)
        beginning.start()
        time.sleep(0.1)
        assert not seen, "a batch is under way"
    assert wait_until(lambda: seen)
    time.sleep(0.1)
    assert seen == ["trainer"]
    leave.set()
    for thread in (asking, beginning):
        thread.join(SECONDS)
    assert seen == ["trainer", "batch"]


def test_an_error_in_generation_is_raised_after_earlier_batches_are_used_up():
    generator = Generator(prompts=100)
    batches = ahead(generator, room=3)
    made, fails = generator.generate_samples, ValueError("no engine")

    def generate_samples(**kwargs):
        if generator.begun == 2:
            raise fails
        return made(**kwargs)

    generator.generate_samples = generate_samples
    assert trained_on(batches, 2) == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="no engine"):
        batches.next()


def test_closed_or_asked_to_stop_nothing_more_is_generated():
    for way in ("closed", "asked"):
        generator, others = Generator(prompts=100), {*threading.enumerate()}
        batches = ahead(generator, room=1)
        batches.next()
        with batches.undisturbed():
            pass

        def stop():
            raise KeyboardInterrupt

        if way == "asked":
            generator.check_stop = stop
            with pytest.raises(KeyboardInterrupt):
                batches.next()
        batches.close()
        assert wait_until(lambda others=others: {*threading.enumerate()} <= others) and generator.begun <= 2
