"""The books of a step: which rollouts count as trained, and when a run has to end."""

from argparse import Namespace
from collections import Counter

import pytest

from openrlhf_shear.train.carriers import Accounts
from openrlhf_shear.train.run.books import Books
from openrlhf_shear.train.screen.outcome import NotFiniteError, RewardsLostError


@pytest.fixture
def books():
    args = Namespace(
        reward=Namespace(max_failed=0.5, max_failed_steps=3),
        train=Namespace(max_skipped_steps=2),
        ds=Namespace(),
        algo=Namespace(dynamic_filtering_range=(0.0, 1.0)),
    )
    ledger = Accounts()
    return Books(args, Namespace(accounts=ledger, metrics=lambda: ledger.metrics(waiting=0)))


def sampled(books, count, failed, last=False):
    counts = Accounts(dispatched=count, failed=Counter({"raised OSError": failed}))
    counts.details["raised OSError"] = "no route"
    books.judge_rewards(Namespace(counts=counts, last=last))


def test_a_run_ends_after_enough_steps_in_a_row_whose_rewards_failed(books, caplog):
    books.accounts.trained = 16
    for failed in (9, 10, 8, 9, 10):
        sampled(books, 16, failed)
        assert books.sound == (failed == 8)  # half is not above half
    with pytest.raises(
        RewardsLostError, match=r"62% of 16 .* raised OSError \(no route\), in 3 steps .* no checkpoint"
    ):
        sampled(books, 16, 10)


def test_a_batch_of_rollouts_that_waited_says_nothing_about_the_rewards(books):
    """With twice as many prompts as a step needs, every second batch is one."""
    books.accounts.trained = 16
    for _ in range(2):
        sampled(books, 16, 16)
        sampled(books, 0, 0)
        assert not books.sound
    with pytest.raises(RewardsLostError, match="in 3 steps"):
        sampled(books, 16, 16)


def test_a_run_of_one_step_without_rewards_ends_as_one_that_lost_them(books):
    books.saved = 4
    with pytest.raises(RewardsLostError, match="step 4 is the last good one"):
        sampled(books, 16, 16, last=True)


def test_every_rollout_of_a_step_is_in_the_books(books):
    books.accounts.dispatched = 16
    books.accounts.failed["raised OSError"] = 2
    metrics = books.close(1, 14, Counter({"advantage not finite": 3}), trained=8, moved=True)
    assert books.accounts.trained == 8 and books.moved and books.sound
    assert metrics["nonfinite/advantage_not_finite"] == 3
    assert metrics["ledger/failed_update_skipped,_gradient_not_finite"] == 3
    assert metrics["ledger/dispatched"] == 16 == metrics["ledger/trained"] + metrics["ledger/failed"]


def test_a_step_that_updates_the_critic_alone_trains_on_finite_rollouts(books):
    books.accounts.dispatched = 16
    books.close(1, 16, Counter({"log-prob or value not finite": 4}), trained=None, moved=False)
    assert books.accounts.trained == 12 and not books.moved


def test_skipped_steps_in_a_row_end_the_run_and_name_the_first_reason(books):
    broken = Counter({"advantage not finite": 16})
    for step, trained in ((1, 0), (2, 16)):
        books.accounts.dispatched += 16
        books.close(step, 16, broken if not trained else Counter(), trained, moved=True)
        assert books.sound == bool(trained)
    books.accounts.dispatched += 16
    books.close(3, 16, Counter(), trained=0, moved=False)
    books.accounts.dispatched += 16
    with pytest.raises(NotFiniteError, match=r"2 steps in a row .*: advantage not finite"):
        books.close(4, 16, broken, trained=0, moved=False)


def test_a_run_whose_filter_dropped_everything_says_which_scores_there_were(books):
    books.accounts.dispatched, books.accounts.filtered = 64, 60
    books.accounts.failed["timeout"] = 4
    books.accounts.filtered_scores = "their mean scores are -1 to -0.5"
    with pytest.raises(
        RewardsLostError,
        match=r"no optimizer step in 0 steps.* 60 were filtered \(their mean scores are -1 to -0.5; .*",
    ) as ended:
        books.refuse_untrained(0)
    assert "dynamic_filtering_range is 0 1), and 4 timeout; use a range" in str(ended.value)


def test_a_run_without_a_reward_or_a_finite_gradient_has_no_model_and_any_other_ends_well(books):
    with pytest.raises(RewardsLostError, match="no trained model: of 0 rollouts none was sampled"):
        books.refuse_untrained(0)
    books.accounts.dispatched = 16
    books.accounts.failed["raised OSError"] = 16
    with pytest.raises(RewardsLostError, match="of 16 rollouts 16 raised OSError"):
        books.refuse_untrained(1)
    books.accounts.dispatched += 16
    books.close(2, 16, Counter(), trained=0, moved=False)
    with pytest.raises(NotFiniteError, match="16 update skipped, gradient not finite"):
        books.refuse_untrained(2)
    books.accounts.trained = 1
    books.refuse_untrained(2)
