"""Cost of moving a token's hidden state to another rank: measured when a run starts, not assumed."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeVar

logger = logging.getLogger(__name__)

PROBE_TOKENS = 4096  # 29 MB of states of a 7B model
_TRIES = 3  # the first opens connections
_TOKEN_SECONDS = 0.7e-6  # the state of a token of a 7B model at 10 GB/s
_PAIR_SECONDS = 0.13 / (1e6 * 25**2)  # until a step was measured: a million pairs of spans, one every 25 tokens
_Sent = TypeVar("_Sent")


@dataclass
class Toll:
    """Cost of a move against that of the search. Both are measured: the move at the start, the search in each step."""

    token_seconds: float  # to move the state of a token
    pair_seconds: float = _PAIR_SECONDS  # to search a pair of tokens with opposite outcomes, in the step before
    fixed: bool = False  # whether steps change nothing

    @classmethod
    def assumed(cls) -> Self:
        """Return the toll of a fast network: no clock decides, so that two runs divide their groups alike."""
        return cls(_TOKEN_SECONDS, fixed=True)

    @classmethod
    def measured(
        cls,
        send: Callable[[int], _Sent],
        receive: Callable[[_Sent], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> Self:
        """Measure the time from `send(tokens)` to the end of `receive(sent)`, and keep the best of some tries."""
        best = math.inf
        for _ in range(_TRIES):
            began = clock()
            receive(send(PROBE_TOKENS))
            best = min(best, clock() - began)
        logger.info("hidden states move to another rank at %.3g us a token", 1e6 * best / PROBE_TOKENS)
        return cls(best / PROBE_TOKENS)

    @property
    def pairs(self) -> float:
        """The move of a token, in pairs of tokens that are searched in the same time.

        It is a power of two, so that clocks seldom change a plan: parts of a group agree with the whole group only up
        to the solver's tolerance.

        >>> Toll(token_seconds=0.7e-6, pair_seconds=2e-10).pairs
        4096.0
        """
        return 2.0 ** round(math.log2(self.token_seconds / self.pair_seconds))

    def learn(self, pairs: float, seconds: float) -> None:
        """Take in a step: the pairs of tokens that all ranks have searched, and the sum of their seconds."""
        if pairs > 0 and seconds > 0 and not self.fixed:
            self.pair_seconds = seconds / pairs
