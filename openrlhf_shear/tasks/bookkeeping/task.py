"""The bookkeeping task for the lab (`lab.tasks`)."""

import random
from collections.abc import Callable
from pathlib import Path

from openrlhf_shear.tasks.bookkeeping.entries import BUDGET, Check, check, response_words, write_entries
from openrlhf_shear.tasks.bookkeeping.situations import situations
from openrlhf_shear.tasks.bookkeeping.stories import TRANSFERS, Problem, make_problems
from openrlhf_shear.tasks.situation import Situation

POLICY_DIR = Path(__file__).parent / "shipped_policy"


class BookkeepingTask:
    """The lab's task of stories with eight transfers."""

    place = policy_place = "ledger"  # as in the folders of older runs
    about = f"{TRANSFERS} transfers"
    warm_up_command = "openrlhf_shear.cli.warm_up_bookkeeping"
    budget = BUDGET
    long_responses = True

    def problems(self, n: int, seed: int, split: str = "train") -> list[Problem]:
        return make_problems(n, seed, split)

    def check(self, tokenizer, problem: Problem, ids) -> Check:
        return check(problem, response_words(tokenizer, ids))

    def situations(self, tokenizer, problem: Problem, ids) -> list[Situation]:
        return situations(problem, response_words(tokenizer, ids))

    def written(self, problem: Problem, rng: random.Random) -> str:
        return " " + write_entries(problem, rng)

    def shipped(self) -> Path:
        return POLICY_DIR

    def warm_up(self, accuracy: float, report: Callable[[str], None]):
        from openrlhf_shear.tasks.bookkeeping.warm_up import WarmUpSettings, warm_up

        return warm_up(WarmUpSettings(target_accuracy=accuracy), report)
