"""Schedule of a step: which rollouts share a forward pass, on which actor rank, and which rank trains on them.

Groups stay whole, and all ranks get equally many passes and equally many rollouts. Pure functions of lengths; nothing
here knows Ray or torch.
"""

import itertools
import math
from dataclasses import dataclass

_SLACK = 0.02  # tolerated excess over an even share
PAIR_SECONDS = 0.13 / (1e6 * 25**2)  # until a step was measured: a million pairs of spans, one every 25 tokens
TOKEN_SECONDS = 1.1e-5  # to move a token's hidden state to another rank: a 7B model's at 0.63 GB/s, by Ray's store


@dataclass(frozen=True)
class Slot:
    """Forward pass of a rank: a micro-batch, or a filler to keep the ranks in step."""

    micro_batch: int
    is_filler: bool  # repeats a pass and drops the result: with ZeRO-3 every pass is a collective of all ranks


@dataclass(frozen=True)
class Schedule:
    """Plan of a step's forward passes: micro-batches in rank order, and equally many slots per rank."""

    micro_batches: list[list[int]]  # indices of rollouts
    slots: list[Slot]  # rank 0's, then rank 1's, ...; equally many for each
    owners: list[int]  # per group, the actor that keeps the inputs of the credit rule


def plan_micro_batches(
    lengths: list[int],
    group_size: int,
    ranks: int,
    *,
    micro_batch_size: int | None = None,
    max_tokens: int | None = None,
    copies: int = 1,
) -> Schedule:
    """Deal whole groups to ranks and cut each rank's share into micro-batches.

    A rank never holds more than the hidden states of one group and one micro-batch. If several actors see the same
    rollouts (a ring, tensor parallelism), they take turns in keeping a rank's groups.

    Args:
        lengths: tokens (prompt and response) of each rollout; rollouts of a group are neighbours.
        ranks: data-parallel actor ranks.
        micro_batch_size: rollouts per forward pass; groups are dealt in order, as upstream does.
        max_tokens: the alternative, tokens per forward pass (dynamic batching). Groups are dealt by length. A pass
            holds several whole groups, or a part of a group that is too long. A rollout above the limit gets a separate
            pass.
        copies: actors per rank; the first actor of a rank is number rank * copies.
    """
    if (micro_batch_size is None) == (max_tokens is None):
        raise ValueError("give exactly one of micro_batch_size and max_tokens")
    groups = [list(range(start, start + group_size)) for start in range(0, len(lengths), group_size)]
    if max_tokens is None:
        shares = _deal_in_order(groups, ranks)
        in_order = [[i for group in share for i in group] for share in shares]
        size = micro_batch_size
        batches = [[share[i : i + size] for i in range(0, len(share), size)] for share in in_order]
    else:
        shares = _deal_by_length(groups, lengths, ranks)
        batches = [_bundle(share, lengths, max_tokens) for share in shares]

    passes = max(len(share) for share in batches)
    micro_batches = [batch for share in batches for batch in share]
    cheapest = min(range(len(micro_batches)), key=lambda b: sum(lengths[i] for i in micro_batches[b]))
    slots, first = [], 0
    for share in batches:
        slots += [Slot(first + k, False) for k in range(len(share))]
        slots += [Slot(cheapest, True)] * (passes - len(share))
        first += len(share)
    owner = {group[0]: rank * copies + k % copies for rank, share in enumerate(shares) for k, group in enumerate(share)}
    return Schedule(micro_batches, slots, [owner[group[0]] for group in groups])


def share_credit(
    work: list[float],
    owners: list[int],
    ranks: int,
    tolls: list[float] | None = None,
    sizes: list[float] | None = None,
    limits: list[float] | None = None,
) -> list[list[int]]:
    """Share out the work of weighing groups; return the groups of each rank.

    A rank keeps its groups, the largest first, up to an even share. Each remaining group, the largest first, goes to
    the rank that would finish it first. Nothing moves unless the step then ends sooner.

    >>> share_credit([4.0, 3.0, 2.0, 1.0], owners=[0, 0, 0, 1], ranks=2)
    [[0, 2], [1, 3]]

    A rank has one foreign group in its memory at a time, after it has weighed and released its groups, but for those
    that it lends. No group moves to a rank where both exceed the limit.

    Args:
        work: the work of each group, in any unit.
        owners: the rank that has the group's hidden states.
        tolls: the cost of moving a group to another rank, in the unit of `work`.
        sizes: the bytes of each group's tensors.
        limits: the bytes of groups that each rank may hold (`credit.max_waiting_bytes`); None for no limit. The search
            has separate memory, which `credit.max_cost_bytes` limits.
    """
    even, tolls = sum(work) / ranks, tolls or [0.0] * len(work)
    sizes, limits = sizes or [0.0] * len(work), limits or [math.inf] * ranks
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads, stays, left = [0.0] * ranks, [0.0] * ranks, []

    for group in sorted(range(len(work)), key=lambda group: -work[group]):
        owner = owners[group]
        if loads[owner] + work[group] <= (1 + _SLACK) * even:
            loads[owner] += work[group]
            shares[owner].append(group)
        else:
            left.append(group)
            stays[owner] += sizes[group]
    for group in left:
        owner = owners[group]
        ends = [load + work[group] + tolls[group] * (rank != owner) for rank, load in enumerate(loads)]
        fits = [rank for rank in range(ranks) if rank == owner or stays[rank] + sizes[group] <= limits[rank]]
        rank = min(fits, key=lambda rank: (ends[rank], rank != owner))
        loads[rank] = ends[rank]
        shares[rank].append(group)
    at_home = [[group for group, owner in enumerate(owners) if owner == rank] for rank in range(ranks)]
    alone = max(sum(work[group] for group in share) for share in at_home)
    return at_home if alone <= (1 + _SLACK) * max(loads) else [sorted(share) for share in shares]


def update_shares(rollouts: int, ranks: int, batch: int) -> list[list[int | None]]:
    """Return the rollouts that each rank trains on: consecutive numbers, then None for each filler.

    Fillers make all shares equally long, and their sum a multiple of `batch` (rollouts per optimizer step). The ranks'
    numbers of rollouts differ by at most one.

    >>> update_shares(5, ranks=2, batch=4)
    [[0, 1, None, None], [2, 3, 4, None]]
    """
    each = -(-rollouts // batch) * batch // ranks
    bounds = [rank * rollouts // ranks for rank in range(ranks + 1)]
    return [[*range(start, end), *[None] * (each - end + start)] for start, end in itertools.pairwise(bounds)]


def _deal_in_order(groups: list[list[int]], ranks: int) -> list[list[list[int]]]:
    """Deal consecutive groups to consecutive ranks; the first ranks get the extra groups."""
    each, extra = divmod(len(groups), ranks)
    starts = [rank * each + min(rank, extra) for rank in range(ranks + 1)]
    return [groups[start:end] for start, end in itertools.pairwise(starts)]


def _deal_by_length(groups: list[list[int]], lengths: list[int], ranks: int) -> list[list[list[int]]]:
    """Deal the longest group first, each to the rank with the fewest tokens so far."""
    shares: list[list[list[int]]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for group in sorted(groups, key=lambda group: -sum(lengths[i] for i in group)):
        rank = tokens.index(min(tokens))
        shares[rank].append(group)
        tokens[rank] += sum(lengths[i] for i in group)
    return shares


def _bundle(groups: list[list[int]], lengths: list[int], max_tokens: int) -> list[list[int]]:
    """Return micro-batches of at most `max_tokens`: neighbouring groups together, long groups cut."""
    batches: list[list[int]] = []
    room = 0
    for group in groups:
        size = sum(lengths[i] for i in group)
        if size <= room:
            batches[-1] += group
            room -= size
        elif size <= max_tokens:
            batches.append(list(group))
            room = max_tokens - size
        else:
            batches += _cut(group, lengths, max_tokens)
            room = 0
    return batches


def _cut(group: list[int], lengths: list[int], max_tokens: int) -> list[list[int]]:
    """Cut a group into passes of at most `max_tokens`, first-fit, longest rollout first."""
    passes: list[list[int]] = []
    for i in sorted(group, key=lambda i: -lengths[i]):
        for members in passes:
            if sum(lengths[j] for j in members) + lengths[i] <= max_tokens:
                members.append(i)
                break
        else:
            passes.append([i])
    return passes
