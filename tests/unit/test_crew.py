"""The keeper of a crew: it starts workers ahead of their jobs, and goes on after errors."""

import threading
import time
from unittest.mock import Mock

import pytest
from processes import wait_until

from openrlhf_shear.rewards.crew import Crew
from openrlhf_shear.rewards.jail import JailError


def test_the_keeper_does_not_start_a_worker_that_a_job_is_starting():
    """The start of a worker takes as long as five rounds of the keeper."""

    class Slow(Crew):
        started = 0

        def _spawn(self):
            self.started += 1
            if threading.current_thread().name != "keeper":
                time.sleep(1.0)
            return Mock(**{"poll.return_value": None})

        def _nothing(self, worker):
            pass

        _greet = _kill = _end = _nothing

    with Slow(1) as crew:
        crew.keep(1)
        with pytest.raises(KeyError), crew._lent():
            raise KeyError("it is lost")
        with crew._lent():
            assert crew.started == 2, "one, and one in its place"


def test_the_keeper_logs_the_first_error_of_each_kind_and_goes_on(monkeypatch, caplog):
    class Failing(Crew):
        errors = iter([OSError("no memory"), OSError("still none"), JailError("no jail"), OSError("again")])
        started = False

        def _spawn(self):
            for error in self.errors:
                raise error
            self.started = True
            return Mock(**{"poll.return_value": None})

        def _nothing(self, worker):
            pass

        _greet = _kill = _end = _nothing

    monkeypatch.setattr("openrlhf_shear.rewards.crew._REST_SECONDS", 0.01)
    with caplog.at_level("WARNING"), Failing(1) as crew:
        crew.keep(1)
        assert wait_until(lambda: crew.started), "it tries until a worker starts"
    records = [record for record in caplog.records if record.name == "openrlhf_shear.rewards.crew"]
    assert [str(record.exc_info[1]) for record in records] == ["no memory", "no jail"]
    for record in records:
        assert record.exc_info[2] is not None and "in _spawn" in caplog.text, "with its traceback"
        assert "Failing could not start a worker" in record.message and "tries again every 0.01 s" in record.message


def test_the_keeper_goes_on_when_it_cannot_end_a_worker(monkeypatch, caplog):
    """Two workers are dead and cannot be ended, then a third does not greet and cannot be ended."""

    class Undying(Crew):
        def __init__(self):
            super().__init__(2)
            self.workers, self.refused = [], []

        def _spawn(self):
            self.workers.append(Mock(**{"poll.return_value": None}))
            return self.workers[-1]

        def _greet(self, worker):
            if worker in self.workers[2:3]:
                raise JailError("no greeting")

        def _kill(self, worker):
            pass

        def _end(self, worker):
            if worker in self.workers[:3] and worker not in self.refused:
                self.refused.append(worker)
                raise OSError("it does not end")

    monkeypatch.setattr("openrlhf_shear.rewards.crew._REST_SECONDS", 0.01)
    with caplog.at_level("WARNING"), Undying() as crew:
        crew.keep(2)
        assert wait_until(lambda: len(crew._idle) == 2)
        for worker in [*crew.workers]:
            worker.poll.return_value = 1
        assert wait_until(lambda: len(crew.workers) >= 5 and len(crew._idle) == 2), "it starts others"
        assert all(worker in crew.refused for worker in crew.workers[:3])
        with crew._lent() as worker:
            assert worker.poll() is None
    messages = [record.message for record in caplog.records if record.name == "openrlhf_shear.rewards.crew"]
    assert [message.partition(".")[0] for message in messages] == [
        "Undying could not end a worker",
        "Undying could not start a worker ahead of its job",
    ]
