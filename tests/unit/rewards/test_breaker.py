"""The circuit breaker: who is admitted when, and what a late answer or failure changes."""

import threading

import pytest

from openrlhf_shear.rewards.breaker import Breaker


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def opened(failures: int = 3) -> tuple[Breaker, Clock]:
    clock = Clock()
    breaker = Breaker(failures, clock)
    for _ in range(failures):
        breaker.settle(breaker.admit(), False)
    return breaker, clock


@pytest.mark.parametrize(("most", "said"), [(3, (False, False, True, False, False)), (2, (False, None, None, None))])
def test_it_opens_after_failures_in_a_row(most, said):
    """An answer starts the count again. What says nothing (None) is no failure and no answer."""
    breaker = Breaker(most)
    for answered in said:
        breaker.settle(breaker.admit(), answered)
    ticket = breaker.admit()
    assert ticket is not None
    breaker.settle(ticket, False)
    assert breaker.admit() is None and opened(1)[0].admit() is None


def test_after_the_cool_down_one_trial_is_admitted_and_its_answer_closes():
    breaker, clock = opened()
    clock.now = 4.9
    assert breaker.admit() is None and breaker.seconds_left == pytest.approx(0.1)
    clock.now = 5.0
    trial = breaker.admit()
    assert trial is not None and [breaker.admit(), breaker.admit()] == [None, None]
    breaker.settle(trial, True)
    assert None not in [breaker.admit() for _ in range(9)] and breaker.seconds_left == 0


def test_a_trial_that_fails_doubles_the_cool_down_up_to_the_limit_and_closing_resets_it():
    breaker, clock = opened()
    for wait in (5.0, 10.0, 20.0, 40.0, 60.0, 60.0):
        assert breaker.seconds_left == wait
        clock.now += wait
        breaker.settle(breaker.admit(), False)
    clock.now += 60.0
    breaker.settle(breaker.admit(), True)
    for _ in range(3):
        breaker.settle(breaker.admit(), False)
    assert breaker.seconds_left == 5.0


def test_a_trial_that_is_cancelled_leaves_room_for_the_next():
    breaker, clock = opened()
    clock.now = 5.0
    breaker.settle(breaker.admit(), None)
    assert breaker.admit() is not None


def test_of_calls_admitted_before_it_opened_failures_are_old_news_and_an_answer_closes():
    clock = Clock()
    breaker = Breaker(2, clock=clock)
    early = [breaker.admit() for _ in range(6)]
    for ticket in early[:2]:
        breaker.settle(ticket, False)
    clock.now = 5.0
    trial = breaker.admit()
    breaker.settle(early[2], False)
    assert breaker.seconds_left == 0 and breaker.admit() is None, "the trial is still under way"
    breaker.settle(early[3], True)
    assert breaker.admit() is not None
    breaker.settle(early[4], False)
    breaker.settle(early[5], False)
    assert breaker.admit() is not None
    breaker.settle(trial, True)


def test_failures_of_calls_admitted_together_may_count_once():
    breaker = Breaker(3, together=True)
    for wave in range(3):
        tickets = [breaker.admit() for _ in range(50)]
        assert None not in tickets, wave
        for ticket in tickets:
            breaker.settle(ticket, False)
    assert breaker.admit() is None


def test_many_threads_get_one_trial():
    breaker, clock = opened()
    clock.now = 5.0
    tickets, start = [], threading.Barrier(16)

    def ask():
        start.wait()
        tickets.append(breaker.admit())

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tickets) == 16 and sum(ticket is not None for ticket in tickets) == 1
