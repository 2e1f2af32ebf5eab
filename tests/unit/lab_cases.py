"""Rollouts of the built-in task by hand, and rules by hand, for the tests of the credit lab."""

import json
from dataclasses import asdict

import torch

from openrlhf_shear.credit import Credit, CreditRule
from openrlhf_shear.credit.rule import UpdateRule
from openrlhf_shear.lab.rollouts import graded
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.worth import LabRun
from openrlhf_shear.tasks.arithmetic.problems import parse_problem
from openrlhf_shear.tasks.arithmetic.task import ArithmeticTask

SETTINGS = LabSettings(prompts=2, samples_per_prompt=4, steps=2, eval_problems=4, window=4, precision="float32")
PROMPT = "37a+45bx7c-12d+08ex3f-31g+77="
RIGHT = "a37+45=82;~b7x82=74;.,c-12+74=62;d62+08=70;~e70x3=10;f-31+10=79;_g79+77=56;#56"
EOS = "<eos>"


def known_rollouts(policy):
    """Three groups of four: two mixed, one with a lucky rollout, and one without a right answer."""
    lucky, early = RIGHT.replace("b7x82=74", "b7x82=84"), RIGHT[:33]
    wrong = lucky.replace("#56", "#66")
    texts = [RIGHT + EOS, RIGHT, wrong + EOS, early + EOS, lucky + EOS, wrong[:40], early, early + EOS]
    texts += [wrong, wrong + EOS, early, early + EOS]
    return graded(
        ArithmeticTask(), policy.tokenizer, [parse_problem(PROMPT)] * 12, [tokens(policy, text) for text in texts], 4
    )


MADE = {"commit": "c0ffee", "command": "python x", "machine": "a CPU", "versions": {"torch": "2"}}


def write_run(job, accuracy=0.5, then=None, **changes):
    """Write a run as a worker does, under an earlier name of its rule; its second step may have another accuracy."""
    steps = accuracy, accuracy if then is None else then
    run = LabRun("earlier name", job.seed, steps, accuracy, {"loss": (1.0, float("nan"))}, 3.0)
    job.path.parent.mkdir(parents=True, exist_ok=True)
    job.path.write_text(json.dumps(asdict(run) | changes))


def tokens(policy, text):
    body = torch.tensor(policy.tokenizer.encode(text.removesuffix(EOS), add_special_tokens=False))
    return torch.cat([body, torch.tensor([policy.tokenizer.eos_token_id])]) if text.endswith(EOS) else body


class Hand(CreditRule):
    """Constant weights, perhaps others for negative advantages; `seen` are the groups that it was given."""

    def __init__(self, weight=1.0, below=None, needs=()):
        self.weight, self.below, self.needs, self.seen = weight, below, frozenset(needs), []

    def credit(self, group):
        self.seen.append(group)
        below = None if self.below is None else [torch.full((n,), self.below) for n in group.lengths]
        return Credit([torch.full((n,), self.weight) for n in group.lengths], negative_weights=below)


class Maker(CreditRule):
    """A rule that makes advantages 0, 1, 2, ..., minus the step's mean."""

    makes_advantages = True

    def credit(self, group):
        return Credit(advantages=[torch.arange(n, dtype=torch.float64) for n in group.lengths])

    def over_batch(self, advantages):
        return [row - torch.cat(list(advantages)).mean() for row in advantages]


class Zero(UpdateRule):
    def advantages(self, advantages, entropies, mask):
        return torch.zeros_like(advantages), {}
