"""What seeds decide: the order of prompts, and the seed of everything else that is drawn, by where it stands."""

import hashlib
from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


def seed_of(*place: object) -> int:
    """A seed (63 bits) for one place of a run, such as (--train.seed, episode, prompt, sample): a resumed run draws
    what the run before would have drawn, without keeping any generator's state.
    """
    return int.from_bytes(hashlib.sha256(repr(place).encode()).digest()[:8], "big") >> 1


class PromptOrder(Sampler):
    """The prompts of an episode, each once, in an order that only the seed and the episode decide."""

    def __init__(self, size: int, seed: int):
        self._size, self._seed = size, seed
        self.start_at(0, 0)

    def start_at(self, episode: int, consumed: int) -> None:
        """The next iteration gives the episode's prompts after the first `consumed`."""
        self.episode, self.consumed = episode, consumed

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(seed_of(self._seed, "order", self.episode))
        yield from torch.randperm(self._size, generator=generator)[self.consumed :].tolist()
