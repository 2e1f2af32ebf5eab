"""Order of prompts, and the seeds of all other random draws, derived from --train.seed and the place in the run."""

import hashlib
from argparse import Namespace
from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


def seed_of(*place: object) -> int:
    """Return a seed (63 bits) for a place in the run, such as (--train.seed, episode, prompt, sample).

    A resumed run therefore draws what the first run would have drawn, without any saved generator state.
    """
    return int.from_bytes(hashlib.sha256(repr(place).encode()).digest()[:8], "big") >> 1


class PromptOrder(Sampler):
    """Sampler of an episode's prompts, each once, in an order that only the seed and the episode decide."""

    def __init__(self, size: int, seed: int):
        self._size, self._seed = size, seed
        self.start_at(0, 0)

    def start_at(self, episode: int, consumed: int) -> None:
        """Make the next iteration return the episode's prompts after the first `consumed`."""
        self.episode, self.consumed = episode, consumed

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(seed_of(self._seed, "order", self.episode))
        yield from torch.randperm(self._size, generator=generator)[self.consumed :].tolist()


def steps_from(args: Namespace, size: int, episode: int, consumed: int) -> int:
    """Return the number of steps from a place in the data to the end of the run, if no prompt is filtered.

    Args:
        size: the number of prompts.
        episode, consumed: the place: whole episodes, and prompts of the one that has begun.
    """
    batch = args.rollout.batch_size
    whole = max(args.train.num_episodes - episode, 0) * -(-size // batch)
    return max(whole - consumed // batch, 0)


def optimizer_steps(args: Namespace, size: int) -> int:
    """Return the optimizer steps of the whole run, with the last, smaller batch of each episode, which upstream omits.

    It is the length of the learning-rate schedule.
    """
    rollout, rest = args.rollout, size % args.rollout.batch_size
    steps = [rollout.batch_size] * (size // rollout.batch_size) + [rest] * (rest > 0)
    updates = sum(-(-prompts * rollout.n_samples_per_prompt // args.train.batch_size) for prompts in steps)
    return updates * args.train.num_episodes * args.train.max_epochs
