"""The bookkeeping task for the lab (`lab.tasks`)."""

import random
from dataclasses import dataclass
from pathlib import Path

from openrlhf_shear.tasks.bookkeeping.entries import EntryCheck, check, response_words, write_entries
from openrlhf_shear.tasks.bookkeeping.forms import PLAIN, Form
from openrlhf_shear.tasks.bookkeeping.situations import situations
from openrlhf_shear.tasks.bookkeeping.stories import StoryProblem, make_problems
from openrlhf_shear.tasks.situation import Situation

_HERE = Path(__file__).parent
POLICY_DIR = _HERE / "shipped_policy"
_POLICIES = {PLAIN.name: POLICY_DIR, "paraphrased": _HERE / "paraphrased_policy"}


@dataclass(frozen=True)
class BookkeepingTask:
    """The lab's task of stories with transfers, and entries of a form."""

    form: Form = PLAIN
    long_responses = True

    @property
    def place(self) -> str:
        return "bookkeeping" if self.form == PLAIN else f"bookkeeping-{self.form.name}"

    @property
    def about(self) -> str:
        return f"{self.form.transfers} transfers" + (f", {self.form.name}" if self.form != PLAIN else "")

    @property
    def budget(self) -> int:
        return self.form.budget

    def problems(self, n: int, seed: int, split: str = "train") -> list[StoryProblem]:
        return make_problems(n, seed, split, self.form.transfers)

    def check(self, tokenizer, problem: StoryProblem, ids) -> EntryCheck:
        return check(problem, response_words(tokenizer, ids), self.form)

    def situations(self, tokenizer, problem: StoryProblem, ids) -> list[Situation]:
        return situations(problem, response_words(tokenizer, ids), self.form)

    def written(self, problem: StoryProblem, rng: random.Random) -> str:
        return " " + write_entries(problem, rng, form=self.form)

    def shipped(self) -> Path:
        """Return the folder of the shipped policy."""
        return _POLICIES[self.form.name]
