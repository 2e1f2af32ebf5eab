"""The driver shares out the groups that wait, within the ranks' memory, at a measured cost; ranks are stand-ins."""

from types import SimpleNamespace

import openrlhf_on_cpu  # noqa: F401
import pytest

from openrlhf_shear.credit.groups import CreditJob
from openrlhf_shear.train.experience import experience_maker
from openrlhf_shear.train.experience.experience_maker import CreditExperienceMaker
from openrlhf_shear.train.experience.toll import PROBE_TOKENS, Toll


class Rank:
    """An actor's handle: `rank.NAME.remote(...)` calls `NAME` here at once."""

    def __init__(self, waiting: dict[int, int], limit: float):
        self.waiting, self.limit, self.calls = waiting, limit, []

    def __getattr__(self, name):
        def remote(*given):
            self.calls.append((name, *given))
            return {"waiting_groups": (self.waiting, self.limit), "lend_states": "sent"}.get(name)

        return SimpleNamespace(remote=remote)


@pytest.fixture
def maker(monkeypatch):
    monkeypatch.setattr(experience_maker.ray, "get", lambda refs: refs)
    made = CreditExperienceMaker.__new__(CreditExperienceMaker)
    made.rule = SimpleNamespace(splits=False)
    made.toll = Toll(token_seconds=1e-30)
    made.args = SimpleNamespace(train=SimpleNamespace(full_determinism_enable=False))
    return made


OWNERS, WORK, TOKENS = [0, 0, 0, 1], [8.0, 8.0, 8.0, 1.0], [10, 10, 10, 10]
HOME = [[CreditJob(0), CreditJob(1), CreditJob(2)], [CreditJob(3)]]


def moved(shares) -> set[int]:
    return {job.group for job in shares[1] if OWNERS[job.group] == 0}


def test_groups_move_where_there_is_room(maker):
    ranks = [Rank({0: 5, 1: 5, 2: 5}, 15), Rank({3: 5}, 15)]
    assert len(moved(maker._shares(ranks, OWNERS, WORK, TOKENS))) == 1
    ranks[1].limit = 4
    assert maker._shares(ranks, OWNERS, WORK, TOKENS) == HOME


def test_groups_that_were_weighed_in_the_passes_are_no_work(maker):
    ranks = [Rank({0: 5, 1: 5}, 10), Rank({3: 5}, 10)]
    shares = maker._shares(ranks, OWNERS, WORK, TOKENS)
    assert moved(shares) in ({0}, {1}) and 2 not in moved(shares)
    ranks = [Rank({}, 0), Rank({}, 0)]
    assert maker._shares(ranks, OWNERS, WORK, TOKENS) == HOME


def test_the_toll_is_measured_at_the_first_step_with_work_between_the_first_rank_and_the_last(maker):
    maker.toll = None
    ranks = [Rank({0: 5, 1: 5, 2: 5}, 15), Rank({3: 5}, 15)]
    assert maker._shares(ranks[:1], [0], [8.0], [10]) == [[CreditJob(0)]]
    assert maker._shares(ranks, OWNERS, [0.0] * 4, TOKENS) == HOME
    assert maker.toll is None and not any(rank.calls for rank in ranks)
    for _ in range(2):
        maker._shares(ranks, OWNERS, WORK, TOKENS)
    assert maker.toll.token_seconds > 0
    assert ranks[0].calls.count(("lend_states", PROBE_TOKENS)) == 3
    assert ranks[1].calls.count(("borrow_states", ["sent"])) == 3


def test_full_determinism_measures_nothing(maker):
    maker.toll, maker.args.train.full_determinism_enable = None, True
    ranks = [Rank({0: 5, 1: 5, 2: 5}, 15), Rank({3: 5}, 15)]
    maker._shares(ranks, OWNERS, WORK, TOKENS)
    maker.toll.learn(pairs=5e6, seconds=100.0)
    assert maker.toll == Toll.assumed() and not any(name == "lend_states" for name, *_ in ranks[0].calls)
