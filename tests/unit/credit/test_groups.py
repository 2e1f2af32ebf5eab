"""Groups are put together from micro-batches in any order; the step's metrics describe the weights."""

import math
import pickle
import weakref
from dataclasses import replace

import pytest
import torch
from lab_cases import Hand, Maker

from openrlhf_shear.config import SearchConfig, ShearConfig
from openrlhf_shear.credit import RolloutGroup, shear_weights
from openrlhf_shear.credit import groups as groups_module
from openrlhf_shear.credit.apply import token_advantages, weighed
from openrlhf_shear.credit.groups import CreditRequest, GroupCollector, WaitingGroup, step_metrics, waiting_bytes
from openrlhf_shear.credit.rule import GroupCredit
from openrlhf_shear.credit.rules.shear import ShearRule
from openrlhf_shear.credit.rules.uniform import UniformRule

CONFIG = ShearConfig(window=4, stride=2)
RULE = ShearRule(CONFIG)


def group(seed: int, n: int = 4):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(5 + i, 8, generator=generator) for i in range(n)], [i % 2 == 0 for i in range(n)]


def add(collector, rollouts, groups, correct, states) -> None:
    rewards = tuple(float(outcome) for outcome in correct)
    request = CreditRequest(tuple(rollouts), tuple(groups), rewards, tuple(correct), 4)
    collector.add(request, [len(state) for state in states], {"hidden_states": states})


def test_groups_spread_over_micro_batches_get_the_weights_of_the_whole_group():
    first, second = group(0), group(1)
    states, correct = first[0] + second[0], first[1] + second[1]
    collector = GroupCollector(RULE)
    for batch in ([5, 0, 1], [7, 2], [4, 6, 3]):
        add(collector, batch, [i // 4 for i in batch], [correct[i] for i in batch], [states[i] for i in batch])
    done = {credit.rollouts: credit for credit in collector.take()}
    assert done.keys() == {(0, 1, 2, 3), (4, 5, 6, 7)}
    for rollouts, credit in done.items():
        expected = shear_weights([states[i] for i in rollouts], [correct[i] for i in rollouts], CONFIG)
        assert all(torch.equal(a, b) for a, b in zip(credit.weights, expected.weights, strict=True))
        assert credit.metrics["opposed"] == 1 and credit.metrics["mean_norm"] == expected.mean_norm
    assert collector.take() == []


def test_a_credit_that_leaves_its_actor_arrives_as_it_was():
    tensors = tuple(torch.rand(n, generator=torch.Generator().manual_seed(n)) for n in (3, 0, 5))
    columns = {"rollouts": (4, 5, 6), "rewards": (0.0, 1.0, 0.5), "correct": (False, True, None), "metrics": {"a": 1.0}}
    for names in ((), ("weights",), ("weights", "negative_weights"), ("advantages",)):
        sent = GroupCredit(**columns, seconds=0.5, **dict.fromkeys(names, tensors))
        there = pickle.loads(pickle.dumps(sent))
        assert there.tensors().keys() == set(names)
        assert all(torch.equal(a, b) for made in there.tensors().values() for a, b in zip(made, tensors, strict=True))
        assert {name: getattr(there, name) for name in columns} == columns and there.seconds == 0.5


def test_incomplete_group_is_an_error_and_does_not_haunt_the_next_step():
    states, correct = group(0)
    collector = GroupCollector(RULE)
    add(collector, [0, 1], [0, 0], correct[:2], states[:2])
    with pytest.raises(RuntimeError, match=r"incomplete groups .*\{0: 2\}"):
        collector.take()
    assert collector.take() == []


class Counting(ShearRule):
    """Remembers the groups it has weighed."""

    def __init__(self):
        super().__init__(CONFIG)
        self.numbers = []

    def credit(self, group):
        self.numbers.append(group.number)
        return super().credit(group)


@pytest.mark.parametrize(("budget", "at_once"), [(math.inf, []), (0, [0, 1, 2]), (2 * 4 * 26 * 8, [2])])
def test_groups_wait_for_all_forward_passes_as_far_as_they_fit(budget, at_once):
    rule = Counting()
    collector = GroupCollector(rule, budget)
    for g in range(3):  # 26 tokens of 8 float32 each
        states, correct = group(g)
        add(collector, range(4 * g, 4 * g + 4), [g] * 4, correct, states)
    assert rule.numbers == at_once
    credits = collector.take()
    assert sorted(rule.numbers) == [0, 1, 2] and len(credits) == 3


def test_of_rollouts_that_several_ranks_see_each_keeps_its_own_groups():
    (first, correct), (second, _) = group(0), group(1)
    collectors = [GroupCollector(Counting(), rank=rank) for rank in range(3)]
    for states, members in ((first[:2] + second[:3], [0, 1, 4, 5, 6]), (second[3:] + first[2:], [7, 2, 3])):
        outcomes = tuple(correct[i % 4] for i in members)
        rewards = tuple(float(outcome) for outcome in outcomes)
        numbers = tuple(i // 4 for i in members)
        request = CreditRequest(tuple(members), numbers, rewards, outcomes, 4, owners=tuple(2 - n for n in numbers))
        for rank, collector in enumerate(collectors):
            kept = request.kept_by(rank)
            shown = [state if mine else state[:0] for state, mine in zip(states, kept, strict=True)]
            collector.add(request, [len(state) for state in states], {"hidden_states": shown})
    assert [[credit.rollouts for credit in collector.take()] for collector in collectors] == [
        [],
        [(4, 5, 6, 7)],
        [(0, 1, 2, 3)],
    ]


def test_what_is_lent_gets_the_same_weights_as_at_home():
    rules = [Counting() for _ in range(3)]
    home, owner, other = map(GroupCollector, rules)
    for g in range(3):
        for collector in (home, owner):
            add(collector, range(4 * g, 4 * g + 4), [g] * 4, group(g)[1], group(g)[0])
    lent = owner.lend([0, 1, 9])
    assert list(lent) == [0, 1]
    other.work([0, 1, 9], lent)
    owner.work([2], {})
    assert [rule.numbers for rule in rules] == [[], [2], [0, 1]]
    shared = owner.take(lent=[0, 1]) + other.take()
    expected = {credit.rollouts: credit for credit in home.take()}
    assert sorted(credit.rollouts for credit in shared) == sorted(expected)
    for credit in shared:
        assert all(map(torch.equal, credit.weights, expected[credit.rollouts].weights))
        assert credit.metrics["opposed"] == 1
    assert owner.take() == other.take() == []


def test_a_rank_weighs_its_own_groups_before_it_borrows_one_at_a_time(monkeypatch):
    rule, held = Counting(), []
    home, owner = GroupCollector(rule), GroupCollector(Counting())
    for g in range(4):
        add(owner if g < 2 else home, range(4 * g, 4 * g + 4), [g] * 4, group(g)[1], group(g)[0])
    lent = owner.lend([0, 1])
    size = 26 * 8 * 4
    assert home.waiting() == ({2: size, 3: size}, math.inf)
    assert GroupCollector(rule, 99).waiting() == ({}, 99)

    def to(self, device):
        held.append(sum(home.waiting()[0].values()))
        assert not borrowed or borrowed[-1]() is None, "the group before has left"
        copy = replace(self)
        borrowed.append(weakref.ref(copy))
        return copy

    borrowed = []
    monkeypatch.setattr(WaitingGroup, "to", to)
    home.work(range(4), lent)
    assert rule.numbers == [2, 3, 0, 1] and held == [0, 0]


class AtOnce(ShearRule):
    """Remembers which groups it has weighed at a time."""

    def __init__(self):
        super().__init__(CONFIG)
        self.batches = []

    def credits(self, groups):
        self.batches.append([each.number for each in groups])
        return super().credits(groups)


@pytest.mark.parametrize("works", [True, False])
def test_the_groups_that_wait_on_a_rank_are_weighed_at_once(works):
    rule, alone = AtOnce(), GroupCollector(Counting())
    home, other = GroupCollector(rule), GroupCollector(AtOnce())
    for g in range(4):
        for collector in (other, alone) if g == 3 else (home, alone):
            add(collector, range(4 * g, 4 * g + 4), [g] * 4, group(g)[1], group(g)[0])
    if works:
        home.work([2, 0, 1, 3], other.lend([3]))
    found = {credit.rollouts: credit for credit in home.take()}
    assert rule.batches == ([[0, 1, 2], [3]] if works else [[0, 1, 2]])
    for credit in alone.take():
        if credit.rollouts in found:
            assert all(map(torch.equal, found[credit.rollouts].weights, credit.weights))
            assert found[credit.rollouts].metrics == credit.metrics
    assert len(found) == (4 if works else 3)


def test_a_group_that_was_weighed_at_once_is_no_job():
    rule = Counting()
    collector = GroupCollector(rule, max_waiting_bytes=0)
    add(collector, range(4), [0] * 4, group(0)[1], group(0)[0])
    assert collector.lend([0]) == {}
    collector.work([0], {})
    assert len(collector.take()) == 1 and rule.numbers == [0]


def test_a_rule_is_given_tokens_and_the_step():
    rule = Hand(needs={"token_ids", "token_texts"})
    collector = GroupCollector(rule)
    for rollout, texts in ((1, ("c",)), (0, ("a", "b"))):
        request = CreditRequest((rollout,), (0,), (0.0,), (False,), group_size=2, step=9)
        ids = torch.arange(len(texts))
        collector.add(request, [len(texts)], {"token_ids": [ids], "token_texts": [texts]})
    collector.take()
    (seen,) = rule.seen
    assert (seen.token_texts, seen.step, seen.lengths) == ((("a", "b"), ("c",)), 9, (2, 1))
    assert [ids.tolist() for ids in seen.token_ids] == [[0, 1], [0]]


def credits(*groups):
    collector = GroupCollector(RULE)
    for g, (states, correct) in enumerate(groups):
        add(collector, range(g * 4, g * 4 + 4), [g] * 4, correct, states)
    return collector.take()


def test_metrics_count_mixed_groups_and_bad_rollouts():
    mixed, unmixed, broken = group(0), (group(1)[0], [True] * 4), group(2)
    broken[0][1][2, 3] = float("nan")
    groups = credits(mixed, unmixed, broken)
    metrics = step_metrics(RULE, groups, seconds=1.5)
    assert metrics["shear/mixed_groups"] == pytest.approx(2 / 3)
    assert metrics["shear/nonfinite_rollouts"] == 1
    assert metrics["shear/credit_seconds"] == 1.5
    both = groups[0], groups[2]
    solved = sum(g.metrics["solved_fraction"] for g in both) / 2
    assert metrics["shear/solved_fraction"] == pytest.approx(solved) and 0 < solved <= 1
    right = torch.cat([w for g in both for w, c in zip(g.weights, g.correct, strict=True) if c])
    everything = torch.cat([w for g in both for w in g.weights])
    assert metrics["shear/omega_correct"] == pytest.approx(right.mean().item())
    assert metrics["shear/omega_mean"] == pytest.approx(everything.mean().item())
    assert (metrics["shear/omega_min"], metrics["shear/omega_max"]) == (everything.min(), everything.max())


def test_every_rule_counts_mixed_groups():
    groups = [
        GroupCredit((0, 1), (1.0, 0.0), correct, {}, 0.0)
        for correct in ((True, False), (True, None), (True, True), (None, None))
    ]
    assert step_metrics(UniformRule(), groups, seconds=0.0)["uniform/mixed_groups"] == 0.25


def test_step_without_mixed_groups_has_no_omega_metrics():
    metrics = step_metrics(RULE, credits((group(0)[0], [False] * 4)), seconds=0.0)
    assert metrics["shear/mixed_groups"] == 0
    assert not any("omega" in name for name in metrics)


def test_a_rollout_without_a_reward_has_no_part_in_a_rule_s_last_word_on_the_batch():
    group = RolloutGroup(0, (1.0, float("nan"), 0.0), (True, None, False), (2, 5, 3))
    ((weighed_group, _),) = weighed(Maker(), [group], [(4, 5, 6)])
    base = {i: torch.full((n,), 9.0) for i, n in zip((4, 5, 6), group.lengths, strict=True)}
    credits = token_advantages(Maker(), [weighed_group], base, failed={5})
    mean = (0 + 1 + 0 + 1 + 2) / 5  # of rollouts 4 and 6
    assert credits[4].advantages.tolist() == pytest.approx([0 - mean, 1 - mean])
    assert credits[6].advantages.tolist() == pytest.approx([0 - mean, 1 - mean, 2 - mean])
    assert credits[5].advantages.tolist() == [0.0] * 5 and credits[5].weights is None


CUDA = torch.device("cuda", 0)


def test_waiting_groups_get_half_of_the_memory_to_spare_on_cuda(monkeypatch):
    facts = {"mem_get_info": (40 * 2**30, 80 * 2**30), "memory_reserved": 12 * 2**30, "memory_allocated": 10 * 2**30}
    facts |= {"max_memory_allocated": 16 * 2**30}  # a pass has needed 6 GiB beside what stays
    for name, value in facts.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert waiting_bytes(CUDA) == (40 + 2 - 6) * 2**29
    assert waiting_bytes(torch.device("cpu")) == 2**32
    monkeypatch.setattr(groups_module, "spare_bytes", lambda device: -5)
    assert waiting_bytes(CUDA) == 0
    long = 16 * 32768 * 3584 * 2  # bytes of a group of 16 x 32k tokens of a 7B model
    monkeypatch.setattr(groups_module, "spare_bytes", lambda device: 60 * 2**30)
    assert 2**32 // long == 1 and waiting_bytes(CUDA) // long == 8


def test_the_limit_is_chosen_at_the_first_group_and_stays(monkeypatch):
    limits, rule = [2 * 4 * 26 * 8, 0], Counting()
    monkeypatch.setattr(groups_module, "waiting_bytes", lambda device: limits.pop(0))
    collector = GroupCollector(rule, SearchConfig().max_waiting_bytes)
    for g in range(3):  # 26 tokens of 8 float32 each
        add(collector, range(4 * g, 4 * g + 4), [g] * 4, group(g)[1], group(g)[0])
    assert rule.numbers == [2] and limits == [0]


def test_the_device_of_a_group_is_that_of_its_states():
    states = tuple(torch.empty(3, 8, device="meta") for _ in range(2))
    columns = {"rewards": (0.0, 1.0), "correct": (False, True), "lengths": (3, 3)}
    ids = tuple(torch.arange(3) for _ in range(2))
    on_meta = RolloutGroup(0, **columns, hidden_states=states, token_ids=ids)
    assert WaitingGroup(on_meta, (0, 1), False).device.type == "meta"
    assert WaitingGroup(RolloutGroup(0, **columns), (0, 1), False).device.type == "cpu"
