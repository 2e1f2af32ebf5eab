"""What the trainer prints reaches the driver once and in order, by separate calls."""

import errno
import io
import threading
from types import SimpleNamespace

import pytest
import ray
from processes import wait_until

from openrlhf_shear.train.cpu import backend as cpu_backend

cpu_backend.install()  # tests import OpenRLHF's modules

from openrlhf_shear.train.screen import relay, story  # noqa: E402


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A process that nobody has asked yet, with a Ray whose calls run in the caller's thread."""
    handler = relay.init_logger("openrlhf").handlers[0]
    before = handler.stream
    monkeypatch.setattr(relay, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get", lambda call: call())
    yield
    handler.setStream(before)
    story.divert(None)
    relay.diverted.cache_clear()


class Driver(relay.Followed):
    """The driver and the trainer in one process: what the driver prints is in `screen`."""

    def __init__(self, monkeypatch, printed=relay.fetch):
        self.screen = io.StringIO()
        monkeypatch.setattr(relay.story, "put", self.screen.write)
        remote = lambda seen, patience: lambda: printed(seen, patience)  # noqa: E731
        actor = SimpleNamespace(printed=SimpleNamespace(remote=remote))
        super().__init__(SimpleNamespace(remote=lambda *words, **named: actor))


def test_what_is_said_and_logged_arrives_once_and_not_by_stdout(monkeypatch, capfd):
    put, driver = story.put, Driver(monkeypatch)
    handler = relay.init_logger("openrlhf").handlers[0]
    before = handler.stream
    driver.remote("the trainer's arguments")
    assert wait_until(lambda: handler.stream is not before), "the first call diverts"
    for step in range(1, 4):
        put(f"[openrlhf_shear] {step}/3\n")
        relay.init_logger("openrlhf.x").warning("of step %d\nin two lines", step)
    put("[openrlhf_shear] finished\n")
    driver.close()
    lines = [line.rstrip() for line in driver.screen.getvalue().splitlines() if line.strip()]
    assert [line for line in lines if line.startswith("[")] == [
        *(f"[openrlhf_shear] {step}/3" for step in range(1, 4)),
        "[openrlhf_shear] finished",
    ]
    assert sum("of step 2" in line for line in lines) == 1 and sum("in two lines" in line for line in lines) == 3
    assert "3/3" not in capfd.readouterr().out


def test_a_call_that_fails_loses_nothing(monkeypatch):
    calls = iter([None, ray.exceptions.ActorUnavailableError("no answer", None), None])

    def printed(seen, patience):
        answer = relay.fetch(seen, 0.0)
        if error := next(calls, None):
            raise error  # on its way back
        return answer

    put, driver = story.put, Driver(monkeypatch, printed)
    relay.fetch(0, 0.0)
    put("one\n")
    driver.remote()
    put("two\n")
    driver.close()
    assert driver.screen.getvalue() == "one\ntwo\n"


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


def test_texts_that_nobody_fetches_are_not_kept_for_ever(monkeypatch):
    monkeypatch.setattr(relay, "MOST", 3)
    kept = relay.Relay()
    for number in range(10):
        kept.write(f"{number}\n")
    assert kept.fetch(0, 0.0) == (10, ["7\n", "8\n", "9\n"])
    assert kept.fetch(10, 0.0) == (10, [])
    kept.write("10\n")
    assert kept.fetch(10, 0.0) == (11, ["10\n"])


def test_a_forked_process_prints_by_itself(monkeypatch, capsys):
    kept = relay.Relay()
    monkeypatch.setattr(relay.os, "getpid", lambda: 1)
    kept.write("a data loader's\n")
    monkeypatch.undo()
    assert capsys.readouterr().out == "a data loader's\n" and kept.fetch(0, 0.0) == (0, [])


def test_a_full_disk_behind_stdout_does_not_stop_who_says_something(monkeypatch):
    refused = []

    def refuse(*text):
        refused.extend(text)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sys.stdout", SimpleNamespace(write=refuse, flush=refuse))
    story.say("one line\nand another")
    story.Doing()("sampling", 1, 2)
    assert [line.partition("] ")[2].strip() for line in refused] == ["one line", "and another", "sampling 1/2"]
