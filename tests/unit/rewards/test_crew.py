"""The keeper of a crew: it starts workers ahead of their jobs, and goes on after errors."""

import threading
import time
from contextlib import AbstractContextManager
from unittest.mock import Mock

import pytest
from processes import wait_until

from openrlhf_shear.rewards.crew import Crew
from openrlhf_shear.rewards.jail import JailError


class Stand(Crew):
    """Workers that are objects: they start at once, live on, and end at once."""

    def job(self) -> AbstractContextManager:
        return self._lent()

    def _spawn(self):
        return Mock(**{"poll.return_value": None})

    def _nothing(self, worker):
        pass

    _greet = _kill = _end = _nothing


def test_the_keeper_does_not_start_a_worker_that_a_job_is_starting():
    """The start of a worker takes as long as five rounds of the keeper."""

    class Slow(Stand):
        started = 0

        def _spawn(self):
            self.started += 1
            if threading.current_thread().name != "keeper":
                time.sleep(1.0)
            return super()._spawn()

    with Slow(1) as crew:
        crew.keep(1)
        with pytest.raises(KeyError), crew.job():
            raise KeyError("it is lost")
        with crew.job():
            assert crew.started == 2, "one, and one in its place"


def test_the_keeper_logs_the_first_error_of_each_kind_and_goes_on(caplog):
    class Failing(Stand):
        REST_SECONDS = 0.01
        errors = iter([OSError("no memory"), OSError("still none"), JailError("no jail"), OSError("again")])
        started = False

        def _spawn(self):
            for error in self.errors:
                raise error
            self.started = True
            return super()._spawn()

    with caplog.at_level("WARNING"), Failing(1) as crew:
        crew.keep(1)
        assert wait_until(lambda: crew.started), "it tries until a worker starts"
    records = [record for record in caplog.records if record.name == "openrlhf_shear.rewards.crew"]
    assert [str(record.exc_info[1]) for record in records] == ["no memory", "no jail"]
    for record in records:
        assert record.exc_info[2] is not None and "in _spawn" in caplog.text, "with its traceback"
        assert "Failing could not start a worker" in record.message and "tries again every 0.01 s" in record.message


def test_the_keeper_goes_on_when_it_cannot_end_a_worker(caplog):
    """Two workers are dead and cannot be ended, then a third does not greet and cannot be ended."""

    class Undying(Stand):
        REST_SECONDS = 0.01

        def __init__(self):
            super().__init__(2)
            self.started, self.greeted, self.refused = [], [], []

        def _spawn(self):
            self.started.append(super()._spawn())
            return self.started[-1]

        def _greet(self, worker):
            if worker in self.started[2:3]:
                raise JailError("no greeting")
            self.greeted.append(worker)

        def _end(self, worker):
            if worker in self.started[:3] and worker not in self.refused:
                self.refused.append(worker)
                raise OSError("it does not end")

    with caplog.at_level("WARNING"), Undying() as crew:
        crew.keep(2)
        assert wait_until(lambda: len(crew.greeted) == 2)
        for worker in [*crew.started]:
            worker.poll.return_value = 1
        assert wait_until(lambda: len(crew.greeted) == 4), "it starts others"
        assert {*crew.workers} == {*crew.greeted[2:]} and {*crew.refused} == {*crew.started[:3]}
        with crew.job() as worker:
            assert worker.poll() is None
    messages = [record.message for record in caplog.records if record.name == "openrlhf_shear.rewards.crew"]
    assert [message.partition(".")[0] for message in messages] == [
        "Undying could not end a worker",
        "Undying could not start a worker ahead of its job",
    ]
