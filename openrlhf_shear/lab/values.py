"""The value of every prefix of a rollout, and so the true advantage of every token.

    V(s_t) = P(right answer | prompt and the first t response tokens), where the policy continues at temperature 1
    A_t = Q(s_t, a_t) - V(s_t) = V(s_{t+1}) - V(s_t)

(Appending a token is deterministic, and the reward comes at the end; so A_1 + ... + A_T = reward - V(s_0).)

A value is exact after the last token, and where the task's simulator settles it but for slips of the pen. Any other
value is the mean of n continuations, which the policy samples from the prefix itself. Prefixes share a value where the
simulator finds equal situations; where it is lost, while the policy was sure of each token. For V lies in [0, 1], so

    |A_t| = (1 - p) |Q(s_t, a_t) - mean of Q over the other tokens| <= 1 - p,    p the policy's probability of a_t

and a value is taken anew before these bounds sum to more than a tolerance.

Legend: N rollouts; T_i response tokens of rollout i.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch
from tqdm import tqdm

from openrlhf_shear.lab.rollouts import Rollouts
from openrlhf_shear.lab.tasks import Problem, Task
from openrlhf_shear.tasks.arithmetic.sampling import continue_ids
from openrlhf_shear.tasks.situation import Situation

TOLERANCE = 0.02
BATCH = 256  # continuations


@dataclass(frozen=True)
class Values:
    """Values of the prefixes of N rollouts."""

    values: list[torch.Tensor]  # N of (T_i + 1,) float64: before each token, and after the last
    sampled: list[torch.Tensor]  # N of (T_i + 1,) bool: the value is a mean over continuations, and not exact
    continuations: int  # n, of each sampled value
    drawn: int  # continuations in all

    @property
    def advantages(self) -> list[torch.Tensor]:
        """N of (T_i,) float64, in [-1, 1]: the true advantage of each token."""
        return [values.diff() for values in self.values]

    @property
    def exact(self) -> float:
        """Fraction of the prefixes whose value is exact."""
        sampled = torch.cat(self.sampled)
        return 1 - sampled.double().mean().item()


def prefix_values(
    policy,
    task: Task,
    problems: Sequence[Problem],
    rollouts: Rollouts,
    log_probs: torch.Tensor,
    continuations: int,
    seed: int,
    tolerance: float = TOLERANCE,
) -> Values:
    """Return the values of all prefixes; the same arguments give the same values.

    A shared value's continuations start in turn from each rollout that has it, where the rollout first has it.

    Args:
        policy: a `lab.policy.Policy`.
        problems: one for each group.
        log_probs: (N, S - 1), the policy's `Reading.log_probs` of the rollouts, which it sampled at temperature 1.
        continuations: n; a sampled value has a standard error of at most 1 / (2 sqrt(n)).
        tolerance: largest error from sharing a value where the simulator is lost.

    Raises ValueError: `continuations` is below 1.
    """
    if continuations < 1:
        raise ValueError(f"continuations must be at least 1: got {continuations}; use e.g. 64")
    responses = [row[keep] for row, keep in zip(rollouts.sequences[:, 1:], rollouts.mask, strict=True)]
    doubts = [1 - row[keep].double().exp() for row, keep in zip(log_probs, rollouts.mask, strict=True)]
    starts = (rollouts.mask.int().argmax(1) + 1).tolist()  # of the responses
    repeated = [problem for problem in problems for _ in range(rollouts.group_size)]
    known: dict[Hashable, float] = {}  # values by label
    labels: list[list[Hashable]] = []  # by rollout: of each prefix; prefixes with the same label share a value
    for i, (problem, response) in enumerate(zip(repeated, responses, strict=True)):
        seen = task.situations(policy.tokenizer, problem, response)[: len(response)]
        labels.append([*_labels(seen, doubts[i].tolist(), i, i // rollouts.group_size, tolerance), ("end", i)])
        known |= {label: s.value for label, s in zip(labels[i], seen, strict=False) if s.value is not None}
        known["end", i] = float(rollouts.correct[i])
    places: dict[Hashable, list[tuple[int, int]]] = {}
    for i, row in enumerate(labels):
        for label in dict.fromkeys(row):
            places.setdefault(label, []).append((i, row.index(label)))
    wanted = [
        (label, *where[n % len(where)])
        for label, where in places.items()
        if label not in known
        for n in range(continuations)
    ]
    wanted.sort(key=lambda each: starts[each[1]] + each[2])  # batches of about equal lengths
    rows = [rollouts.sequences[i, : starts[i] + t].tolist() for _, i, t in wanted]
    room, ends = [task.budget - t for _, _, t in wanted], []
    for at in tqdm(range(0, len(rows), BATCH), "continuations", unit="batch", leave=False, disable=None):
        batch = slice(at, at + BATCH)
        ends += continue_ids(policy.model, policy.tokenizer, rows[batch], room[batch], seed * 1_000_003 + at // BATCH)
    right = Counter()
    for (label, i, t), end in zip(wanted, ends, strict=True):
        right[label] += task.check(policy.tokenizer, repeated[i], torch.cat([responses[i][:t], end])).correct
    sampled = {label: right[label] / continuations for label, _, _ in wanted}
    values = known | sampled
    return Values(
        [torch.tensor([values[label] for label in row], dtype=torch.float64) for row in labels],
        [torch.tensor([label in sampled for label in row]) for row in labels],
        continuations,
        len(wanted),
    )


def _labels(
    situations: Sequence[Situation], doubts: Sequence[float], rollout: int, group: int, tolerance: float
) -> Iterator[Hashable]:
    """Yield a label for each prefix that is not the whole response.

    Args:
        situations: (T_i,) before each token.
        doubts: (T_i,) 1 - p of each token.
    """
    since, doubt = None, 0.0
    for at, situation in enumerate(situations):
        if situation.key is not None:
            since = None
            yield "situation", group, situation.key
            continue
        doubt += doubts[at - 1] if at else 0.0
        if since is None or doubt > tolerance:
            since, doubt = at, 0.0
        yield "prefix", rollout, since
