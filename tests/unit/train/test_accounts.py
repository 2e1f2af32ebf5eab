"""The ledger, failed rewards in advantages, and in the credit of a group."""

import math

import pytest
import torch

from openrlhf_shear.credit.baselines import fill_failed, group_advantages
from openrlhf_shear.train.carriers import Accounts


def test_a_ledger_that_adds_up_gives_metrics():
    ledger = Accounts(dispatched=16, filtered=4, trained=9)
    ledger.failed["raised ValueError"] += 2
    assert ledger.metrics(waiting=1) == {
        "ledger/dispatched": 16.0,
        "ledger/trained": 9.0,
        "ledger/filtered": 4.0,
        "ledger/failed": 2.0,
        "ledger/waiting": 1.0,
        "ledger/failed_raised_ValueError": 2.0,
    }


def test_a_ledger_that_does_not_add_up_raises():
    for waiting in (0, 2):
        with pytest.raises(RuntimeError, match="unaccounted for: 16 dispatched, but 9 trained, 4 filtered, 2 failed"):
            Accounts(dispatched=16, filtered=4, trained=9, failed={"timeout": 2}).metrics(waiting)


def test_a_resumed_ledger_adds_up():
    ledger = Accounts(dispatched=16, filtered=4, trained=6)
    ledger.failed["timeout"] += 2
    assert Accounts.resumed(ledger.state(waiting=4)).metrics(4) == ledger.metrics(4)


def test_counts_move_from_one_ledger_to_another():
    ledger, counts = Accounts(dispatched=4, trained=3), Accounts()
    ledger.failed["timeout"] += 1
    for _ in range(2):
        counts.dispatched, counts.filtered = 4, 1
        counts.failed["timeout"] += 2
        counts.details["timeout"] = "60 s"
        assert counts.first_of("timeout") == (ledger.dispatched == 4)
        ledger.add(counts.take())
    assert counts == Accounts(shown={"timeout"})
    assert ledger == Accounts(12, 2, 3, {"timeout": 5}, details={"timeout": "60 s"})


def advantages(rewards, estimator):
    """Independent float64 formulas of one group without failures."""
    n, mean = len(rewards), math.fsum(rewards) / len(rewards)
    if estimator == "rloo":
        return [r - (math.fsum(rewards) - r) / (n - 1) for r in rewards]
    if estimator == "dr_grpo":
        return [r - mean for r in rewards]
    std = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / (n - 1))
    return [(r - mean) / (std + 1e-9) for r in rewards]


@pytest.mark.parametrize("estimator", ["group_norm", "rloo", "dr_grpo"])
def test_failed_rewards_count_in_no_group_statistic(estimator):
    rewards = torch.tensor([1.0, 0.0, 0.0, 7.0, 2.0, 1.0, 1.0, 1.0, 0.3, 9.0, 9.0, 9.0])
    failed = torch.tensor([False] * 3 + [True] + [False] * 4 + [False] + [True] * 3)
    filled = fill_failed(rewards, failed, 4)
    assert filled[3] == pytest.approx(1 / 3) and (filled[9:] == filled[8]).all()
    assert torch.equal(filled[~failed], rewards[~failed])
    filled[3] -= 0.5  # a length penalty that upstream puts on the placeholder too
    made = group_advantages(filled, 4, estimator, failed)
    for start in range(0, 12, 4):
        valid = [i for i in range(start, start + 4) if not failed[i]]
        alone = advantages([rewards[i].item() for i in valid], estimator) if len(valid) > 1 else [0.0]
        # float32 rounding of sums of four numbers below 10, divided by deviations of at least 0.3
        assert made[valid].tolist() == pytest.approx(alone, abs=1e-5)
    assert not made[failed].any()


def test_a_group_without_any_reward_takes_the_batch_mean():
    rewards, failed = torch.tensor([1.0, 0.0, 5.0, 5.0]), torch.tensor([False, False, True, True])
    assert fill_failed(rewards, failed, 2).tolist() == [1.0, 0.0, 0.5, 0.5]
    assert fill_failed(rewards, torch.ones(4, dtype=torch.bool), 2).tolist() == [0.0] * 4
    assert not group_advantages(rewards, 2, failed=failed)[2:].any()
