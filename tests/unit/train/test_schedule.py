"""Groups stay whole on a rank, every rollout is run once, and every rank makes the same number of passes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_shear.train.experience.schedule import Slot, plan_micro_batches, share_credit, update_shares


def passes_by_rank(schedule, ranks):
    each = len(schedule.slots) // ranks
    return [schedule.slots[rank * each : (rank + 1) * each] for rank in range(ranks)]


@given(
    groups=st.integers(1, 9),
    group_size=st.integers(1, 5),
    ranks=st.integers(1, 4),
    limit=st.integers(1, 9),
    dynamic=st.booleans(),
    copies=st.integers(1, 3),
    data=st.data(),
)
def test_laws(groups, group_size, ranks, limit, dynamic, copies, data):
    n = groups * group_size
    lengths = data.draw(st.lists(st.integers(1, 30), min_size=n, max_size=n))
    max_tokens = 6 * limit
    kwargs = {"max_tokens": max_tokens} if dynamic else {"micro_batch_size": limit}
    schedule = plan_micro_batches(lengths, group_size, ranks, copies=copies, **kwargs)

    assert sorted(i for batch in schedule.micro_batches for i in batch) == list(range(n))
    assert len(schedule.slots) % ranks == 0
    assert [slot.micro_batch for slot in schedule.slots if not slot.is_filler] == list(
        range(len(schedule.micro_batches))
    )
    home = {}
    for rank, slots in enumerate(passes_by_rank(schedule, ranks)):
        for slot in slots:
            if not slot.is_filler:
                for i in schedule.micro_batches[slot.micro_batch]:
                    assert home.setdefault(i // group_size, rank) == rank
    assert [owner // copies for owner in schedule.owners] == [home[group] for group in range(groups)]
    for rank in range(ranks):
        kept = [schedule.owners.count(rank * copies + copy) for copy in range(copies)]
        assert max(kept) - min(kept) <= 1, "the actors of a rank take turns"
    for batch in schedule.micro_batches:
        if dynamic:
            assert len(batch) == 1 or sum(lengths[i] for i in batch) <= max_tokens
        else:
            assert len(batch) <= limit


@given(st.lists(st.integers(1, 30), min_size=12, max_size=12), st.integers(10, 80))
def test_few_hidden_states_wait(lengths, max_tokens):
    """At any pass, the rollouts whose group is not finished belong to one group, and to nothing of earlier passes."""
    schedule = plan_micro_batches(lengths, 4, 1, max_tokens=max_tokens)
    seen = [0, 0, 0]
    for batch in schedule.micro_batches:
        for i in batch:
            seen[i // 4] += 1
        assert sum(0 < count < 4 for count in seen) <= 1


def test_worked_examples():
    schedule = plan_micro_batches([3] * 6, 2, 2, micro_batch_size=2)
    assert schedule.micro_batches == [[0, 1], [2, 3], [4, 5]] and schedule.owners == [0, 0, 1]
    assert schedule.slots == [Slot(0, False), Slot(1, False), Slot(2, False), Slot(0, True)]
    even = plan_micro_batches([5] * 8, 2, 2, micro_batch_size=2)  # upstream's order
    assert even.micro_batches == [[0, 1], [2, 3], [4, 5], [6, 7]] and not any(slot.is_filler for slot in even.slots)
    assert plan_micro_batches([2] * 8, 2, 1, max_tokens=8).micro_batches == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert plan_micro_batches([1, 1, 9, 9, 2, 2], 2, 2, max_tokens=18).owners == [1, 0, 1]
    with pytest.raises(ValueError, match="exactly one"):
        plan_micro_batches([1], 1, 1)


@given(rollouts=st.integers(1, 60), ranks=st.integers(1, 5), steps=st.integers(1, 9))
def test_every_rank_reads_the_same_number_of_whole_batches(rollouts, ranks, steps):
    batch = ranks * steps
    shares = update_shares(rollouts, ranks, batch)
    real = [[i for i in share if i is not None] for share in shares]
    assert [i for share in real for i in share] == list(range(rollouts))
    assert len({len(share) for share in shares}) == 1
    total = sum(len(share) for share in shares)
    assert total % batch == 0 and rollouts <= total < rollouts + batch, "never a batch of fillers alone"
    assert max(map(len, real)) - min(map(len, real)) <= 1


@given(work=st.lists(st.floats(0, 100), min_size=1, max_size=30), ranks=st.integers(1, 6), data=st.data())
def test_no_rank_weighs_more_than_its_share_and_one_group(work, ranks, data):
    owners = data.draw(st.lists(st.integers(0, ranks - 1), min_size=len(work), max_size=len(work)))
    shares = share_credit(work, owners, ranks)
    assert sorted(group for share in shares for group in share) == list(range(len(work)))
    even, most = sum(work) / ranks, max(sum(work[group] for group in share) for share in shares)
    assert most <= 1.02 * (1.02 * even + max(work)) + 1e-9
    kept = [sum(w for w, owner in zip(work, owners, strict=True) if owner == rank) for rank in range(ranks)]
    moved = [group for rank, share in enumerate(shares) for group in share if owners[group] != rank]
    assert not moved or max(kept) > 1.02 * even, "nothing moves where every rank has its share"
    assert all(work[group] > 0 for group in moved)


def test_nothing_moves_that_is_weighed_sooner_at_home():
    work, owners = [8.0, 8.0, 1.0, 1.0], [0, 0, 1, 1]
    assert share_credit(work, owners, 2) == [[0], [1, 2, 3]]
    assert share_credit(work, owners, 2, tolls=[5.0] * 4)[1][0] == 1  # 15 in place of 16
    assert share_credit(work, owners, 2, tolls=[6.0] * 4) == [[0, 1], [2, 3]]


@given(work=st.lists(st.floats(0, 100), min_size=1, max_size=20), ranks=st.integers(1, 5), data=st.data())
def test_a_rank_never_holds_more_than_its_limit(work, ranks, data):
    def drawn(kind, count):
        return data.draw(st.lists(kind, min_size=count, max_size=count))

    owners, sizes = drawn(st.integers(0, ranks - 1), len(work)), drawn(st.integers(1, 9), len(work))
    held = [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == rank) for rank in range(ranks)]
    limits = list(map(max, held, drawn(st.integers(0, 40), ranks)))
    shares = share_credit(work, owners, ranks, None, sizes, limits)
    assert sorted(group for share in shares for group in share) == list(range(len(work)))
    for rank, share in enumerate(shares):
        stays = sum(sizes[g] for g, owner in enumerate(owners) if owner == rank and g not in share)
        assert all(stays + sizes[group] <= limits[rank] for group in share if owners[group] != rank)
    assert share_credit(work, owners, ranks, None, sizes, [10_000] * ranks) == share_credit(work, owners, ranks)


def test_a_group_goes_to_a_rank_with_room():
    work, owners, sizes = [8.0, 8.0, 8.0, 1.0, 2.0], [0, 0, 0, 1, 2], [5, 5, 5, 5, 5]
    assert share_credit(work, owners, 3)[1] == [1, 3]
    for room, taker in (([15, 4, 15], 2), ([15, 15, 4], 1)):
        shares = share_credit(work, owners, 3, sizes=sizes, limits=room)
        assert {rank for rank, share in enumerate(shares) for group in share if owners[group] != rank} == {taker}
    assert share_credit(work, owners, 3, sizes=sizes, limits=[15, 4, 4]) == [[0, 1, 2], [3], [4]]
