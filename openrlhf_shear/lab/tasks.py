"""The lab's tasks, and what it asks of each: problems, the check of a response, and a start policy."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.tasks.arithmetic.problems import ChainProblem
from openrlhf_shear.tasks.arithmetic.solutions import SolutionCheck
from openrlhf_shear.tasks.arithmetic.task import ArithmeticTask
from openrlhf_shear.tasks.bookkeeping.entries import EntryCheck
from openrlhf_shear.tasks.bookkeeping.forms import PARAPHRASED
from openrlhf_shear.tasks.bookkeeping.stories import StoryProblem
from openrlhf_shear.tasks.bookkeeping.task import BookkeepingTask
from openrlhf_shear.tasks.situation import Situation

Problem = ChainProblem | StoryProblem


class Task(Protocol):
    """A built-in task. The splits "train" and "heldout" never share a problem, whatever the seeds."""

    place: str  # part of the name of its folder of runs
    about: str
    budget: int  # most tokens of a response
    long_responses: bool  # whether fused attention is faster (`arithmetic.policy.fused_attention`)

    def problems(self, n: int, seed: int, split: str = "train") -> Sequence[Problem]:
        """Return `n` different problems; the same arguments give the same problems."""

    def check(self, tokenizer, problem: Problem, ids: torch.Tensor) -> SolutionCheck | EntryCheck:
        """Check a response, (T_i,) token ids, against the truth.

        `correct` is the reward, and `first_error` the index of the first wrong token, at most T_i; None without one.
        """

    def situations(self, tokenizer, problem: Problem, ids: torch.Tensor) -> list[Situation]:
        """Return what the simulator says before each token of a response but a final `<eos>`, and after the last."""

    def written(self, problem: Problem, rng: random.Random) -> str:
        """Return a response as the warm-up learns it, perhaps wrong, to be joined to the prompt."""

    def shipped(self) -> Path:
        """Return the folder of the shipped policy; ValueError where this task has none."""


def task_of(settings: LabSettings) -> Task:
    match settings.task:
        case "bookkeeping":
            return BookkeepingTask()
        case "bookkeeping-paraphrased":
            return BookkeepingTask(PARAPHRASED)
    return ArithmeticTask(settings.operations)
