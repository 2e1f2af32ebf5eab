"""What the trainer tells reaches the driver once and in order, by separate calls."""

import errno
import threading
from types import SimpleNamespace

import pytest
import ray
from processes import wait_until

from openrlhf_shear.train.cpu import backend as cpu_backend

cpu_backend.install()  # tests import OpenRLHF's modules

from openrlhf_shear.train.screen import relay, story  # noqa: E402
from openrlhf_shear.train.screen.events import Note, Record  # noqa: E402

ONE, TWO = Note("one"), Note("two")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A process that nobody has asked yet, with a Ray whose calls run in the caller's thread."""
    monkeypatch.setattr(relay, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get", lambda call: call())
    yield
    relay.init_logger("openrlhf").handlers[0].filters.clear()
    story.divert(None)
    relay.diverted.cache_clear()


class Driver(relay.Followed):
    """The driver and the trainer in one process: what the driver puts is in `screen`."""

    def __init__(self, monkeypatch, printed=lambda *seen: relay.diverted().fetch(*seen)):
        self.screen = []
        monkeypatch.setattr(relay.story, "put", self.screen.append)
        remote = lambda seen, patience: lambda: printed(seen, patience)  # noqa: E731
        actor = SimpleNamespace(printed=SimpleNamespace(remote=remote))
        super().__init__(SimpleNamespace(remote=lambda *words, **named: actor))


def test_events_and_logs_arrive_once_and_not_by_stdout(monkeypatch, capfd):
    driver = Driver(monkeypatch)
    handler = relay.init_logger("openrlhf").handlers[0]
    driver.remote("the trainer's arguments")
    assert wait_until(lambda: handler.filters), "the first call diverts"
    for step in range(1, 4):
        story.emit(Note(f"{step}/3"))
        relay.init_logger("openrlhf.x").warning("of step %d\nin two lines", step)
    driver.close()
    records = [event for event in driver.screen if isinstance(event, Record)]
    assert [event.text for event in driver.screen if isinstance(event, Note)] == ["1/3", "2/3", "3/3"]
    assert [record.message for record in records] == [f"of step {step}\nin two lines" for step in range(1, 4)]
    assert {record.level for record in records} == {"WARNING"} and records[0].place.startswith("test_relay.py:")
    assert capfd.readouterr().out == ""


def test_a_call_that_fails_loses_nothing(monkeypatch):
    calls = iter([None, ray.exceptions.ActorUnavailableError("no answer", None), None])

    def printed(seen, patience):
        answer = relay.diverted().fetch(seen, 0.0)
        if error := next(calls, None):
            raise error  # on its way back
        return answer

    driver = Driver(monkeypatch, printed)
    relay.diverted().fetch(0, 0.0)
    story.emit(ONE)
    driver.remote()
    story.emit(TWO)
    driver.close()
    assert driver.screen == [ONE, TWO]


def test_an_actor_that_died_is_followed_no_longer(monkeypatch):
    def printed(seen, patience):
        raise ray.exceptions.ActorDiedError()

    driver, others = Driver(monkeypatch, printed), {*threading.enumerate()}
    driver.remote()
    assert wait_until(lambda: {*threading.enumerate()} <= others)
    driver.close()


def test_a_run_whose_trainer_was_never_made_ends():
    others = {*threading.enumerate()}
    relay.Followed(None).close()
    assert {*threading.enumerate()} <= others


def test_events_that_nobody_fetches_do_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(relay, "MOST", 3)
    waiting = relay.Relay()
    for number in range(10):
        waiting.put(number)
    assert waiting.fetch(0, 0.0) == (10, [7, 8, 9])
    assert waiting.fetch(10, 0.0) == (10, [])
    waiting.put(10)
    assert waiting.fetch(10, 0.0) == (11, [10])


def test_a_forked_process_prints_by_itself(monkeypatch, capsys):
    waiting = relay.Relay()
    monkeypatch.setattr(relay.os, "getpid", lambda: 1)
    waiting.put(Note("a data loader's"))
    monkeypatch.undo()
    assert capsys.readouterr().out == "[openrlhf_shear] a data loader's\n" and waiting.fetch(0, 0.0) == (0, [])


def test_a_full_disk_behind_stdout_does_not_stop_who_says_something(monkeypatch):
    written = []

    def refuse(*text):
        written.extend(text)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sys.stdout", SimpleNamespace(write=refuse, flush=refuse))
    story.say("one line\nand another")
    story.doing("sampling", 1, 2)
    assert written == [
        "[openrlhf_shear] one line\n[openrlhf_shear] and another\n",
        "[openrlhf_shear:now] sampling 1/2\n",
    ]
