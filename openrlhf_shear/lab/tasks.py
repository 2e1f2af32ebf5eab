"""The lab's tasks, and all that it asks of one: problems, what is wrong with a response, and a policy to start from."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch

from openrlhf_shear.arithmetic.task import ArithmeticTask
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.ledger.task import LedgerTask


class Problem(Protocol):
    prompt: str


class Check(Protocol):
    correct: bool  # the reward
    first_error: int | None  # index of the first wrong response token, possibly T_i; None if there is none


class Task(Protocol):
    """A built-in task. Problems of the splits "train" and "heldout" are never the same, whatever the seeds."""

    place: str  # in the names of the folders of its runs,
    policy_place: str  # and of its policies
    about: str
    warm_up_command: str  # the module
    budget: int  # most tokens of a response
    long_responses: bool  # so that other attention is the faster one (`arithmetic.attention`), which takes transformers

    def problems(self, n: int, seed: int, split: str = "train") -> Sequence[Problem]:
        """So many different ones, the same for the same arguments."""

    def check(self, tokenizer, problem: Problem, ids: torch.Tensor) -> Check:
        """A response, (T_i,) token ids, against the truth."""

    def shipped(self) -> Path:
        """The folder of the policy that is shipped; ValueError where there is none for this task."""

    def warm_up(self, accuracy: float, report: Callable[[str], None]):
        """A policy that is right so often: `model`, `tokenizer`, `reached_target`, `accuracy`, `steps`."""


def task_of(settings: LabSettings) -> Task:
    return LedgerTask() if settings.task == "ledger" else ArithmeticTask(settings.operations, settings.fillers)
