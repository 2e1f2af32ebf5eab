"""The driver shares out the groups that wait, within the ranks' memory, at a measured cost; ranks are stand-ins."""

from types import SimpleNamespace

import openrlhf_on_cpu  # noqa: F401
import pytest
import torch

from openrlhf_shear.train.experience import experience_maker
from openrlhf_shear.train.experience.experience_maker import CreditExperienceMaker


class Rank:
    """An actor's handle: `rank.NAME.remote(...)` calls `NAME` here at once."""

    def __init__(self, waiting: dict[int, int], limit: float):
        self.waiting, self.limit, self.credits = waiting, limit, []

    def __getattr__(self, name):
        def remote(*given):
            return {"waiting_groups": (self.waiting, self.limit), "take_group_credits": self.credits}.get(name)

        return SimpleNamespace(remote=remote)


@pytest.fixture
def maker(monkeypatch):
    monkeypatch.setattr(experience_maker.ray, "get", lambda refs: refs)
    made = CreditExperienceMaker.__new__(CreditExperienceMaker)
    made.rule = SimpleNamespace()
    made.pair_seconds = 1e10  # moves cost nothing beside it
    return made


OWNERS, WORK, TOKENS = [0, 0, 0, 1], [8.0, 8.0, 8.0, 1.0], [10, 10, 10, 10]
HOME = [[0, 1, 2], [3]]


def moved(shares) -> set[int]:
    return {group for group in shares[1] if OWNERS[group] == 0}


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


def test_the_search_is_timed_in_each_step_that_has_work(maker):
    maker.rule.work = lambda lengths, correct: float(sum(lengths))
    maker._schedule = SimpleNamespace(owners=[0, 0])
    samples = SimpleNamespace(action_mask=torch.ones(2, 5))
    maker._step = SimpleNamespace(samples=[samples])
    rank = Rank({}, 0)
    maker.actor_model_group = SimpleNamespace(actors=[rank])
    rank.credits = [SimpleNamespace(seconds=0.5)]
    for work, expected in ((1.0, 0.05), (0.0, 0.05)):  # a step without work says nothing
        samples.action_mask *= work
        maker._weighed([SimpleNamespace(groups=(0, 1), correct=(True, False))])
        assert maker.pair_seconds == expected
