"""GRPO with any credit rule in one process, on the lab's task: sample, weigh, update."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from openrlhf_shear.credit.checks import checked_advantages
from openrlhf_shear.credit.registry import Rule
from openrlhf_shear.credit.rule import UpdateRule
from openrlhf_shear.lab.credit import StepCredit, credited, traced
from openrlhf_shear.lab.policy import Policy, Reading
from openrlhf_shear.lab.rollouts import Models, Rollouts, further_inputs, sample
from openrlhf_shear.lab.settings import LabSettings
from openrlhf_shear.lab.tasks import Problem, task_of
from openrlhf_shear.lab.untouched import code, refuse_new_code, untouched
from openrlhf_shear.lab.variants import Variant
from openrlhf_shear.lab.worth import LabRun
from openrlhf_shear.report.bootstrap import Bootstrap
from openrlhf_shear.rollouts.localisation import contrast

HELDOUT_SEED = 0  # the same held-out problems for all runs
PROBLEM_SEEDS = 10_000  # training seeds start here; a warm-up has seen the problems of small seeds
_NO_PROBABILITIES = "probability tensor contains"  # torch.multinomial, of NaN
MAX_LOG_RATIO = 20.0  # exp overflows beyond; OpenRLHF's value


class LossTerms(NamedTuple):
    """Loss of a mini-batch, with its clip ratio and KL."""

    loss: torch.Tensor  # (), to be minimised
    clip_ratio: float  # the fraction of tokens whose clipped term is the smaller term
    kl: float  # mean of r - 1 - log r, an estimate of KL(old || new), nats (k3, never negative)


def policy_loss(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip: tuple[float, float],
) -> LossTerms:
    """PPO-clip: -min(r A, clip(r, 1 - low, 1 + high) A), averaged over all response tokens of the mini-batch.

    The same as OpenRLHF's `PolicyLoss("ppo")`, token level, whose import takes OpenRLHF and DeepSpeed. A test compares
    the two.
    Args:
        log_probs, old_log_probs, advantages: (B, A) float32.
        mask: (B, A) bool, the response tokens.
        clip: (low, high), OpenRLHF's `--actor.eps_clip_low_high`.
    """
    log_ratio = log_probs - old_log_probs
    bounded = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = bounded.exp()
    free = ratio * advantages
    clipped = ratio.clamp(1 - clip[0], 1 + clip[1]) * advantages
    loss = -torch.min(free, clipped)[mask].mean()
    with torch.no_grad():
        exact = bounded[mask].double()  # the difference of two nearly equal numbers
        kl = (exact.expm1() - exact).mean().item()
        return LossTerms(loss, (clipped < free)[mask].float().mean().item(), kl)


def train(
    settings: LabSettings,
    variant: Variant,
    seed: int,
    start: Path,
    step_done: Callable[[], None] = lambda: None,
) -> LabRun:
    """Train one run.

    A run whose policy has diverged, so that it has no probabilities to draw from, has no right answer from then on; its
    metric `diverged` has the step.

    Runs of one seed are paired: every rule sees the same problems in the same order, samples with the same random
    numbers, and is judged on the same held-out problems.

    Args:
        start: folder of the start policy.
        step_done: called after every step.

    Raises:
        CreditRuleError: the rule failed.
    """
    started, functions = time.perf_counter(), code()
    rule, task = variant.rule(settings), task_of(settings)
    policy = Policy(start, settings)
    models = Models(policy, Policy(start, settings) if "ref_log_probs" in rule.needs else None, task)
    training = _Training(settings, models, rule, variant.control)
    problems = task.problems(settings.steps * settings.prompts, PROBLEM_SEEDS + seed)
    heldout = task.problems(settings.eval_problems, HELDOUT_SEED, "heldout")
    metrics, evaluations = defaultdict(list), []

    def evaluated() -> float:
        return sample(policy, heldout, settings.eval_samples, settings, seed, settings.eval_temperature).accuracy

    def make_step(step: int) -> None:
        begun = time.perf_counter()
        batch = problems[step * settings.prompts : (step + 1) * settings.prompts]
        for name, value in training.step(batch, seed * 1_000_003 + step, step + 1).items():
            metrics[name].append(value)
        metrics["seconds"].append(time.perf_counter() - begun)
        if settings.eval_every and (step + 1) % settings.eval_every == 0:
            evaluations.append(evaluated())

    step, final = 0, 0.0
    try:
        for step in range(settings.steps):
            make_step(step)
            step_done()
        at_the_end = settings.eval_every and settings.steps % settings.eval_every == 0
        final = evaluations[-1] if at_the_end else evaluated()
    except RuntimeError as error:
        if _NO_PROBABILITIES not in str(error):
            raise
        metrics["diverged"].append(step + 1)
        metrics["accuracy"] += [0.0] * (settings.steps - len(metrics["accuracy"]))
        evaluations += [0.0] * (settings.steps // (settings.eval_every or settings.steps + 1) - len(evaluations))
        for _ in range(step, settings.steps):
            step_done()
    refuse_new_code(variant.name, functions)
    accuracy = tuple(metrics.pop("accuracy"))
    by_step = {name: tuple(values) for name, values in metrics.items()}
    seconds = time.perf_counter() - started
    return LabRun(variant.name, seed, accuracy, final, by_step, seconds, evaluations=tuple(evaluations))


@dataclass(frozen=True)
class _Training:
    """What the steps of a run share."""

    settings: LabSettings
    models: Models
    rule: Rule
    control: str | None

    def step(self, problems: Sequence[Problem], draw: int, number: int) -> dict[str, float]:
        """Take step `number`, from 1, with the random numbers of the seed `draw`; return its metrics."""
        policy, rule = self.models.policy, self.rule
        rollouts = sample(policy, problems, self.settings.samples_per_prompt, self.settings, draw)
        order = torch.randperm(len(rollouts.lengths), generator=torch.Generator().manual_seed(draw))
        parts = order.chunk(self.settings.mini_batches)
        reading, first = read_mini_batches(policy, rollouts, parts, rule.needs)
        further = further_inputs(rule.needs, self.models, problems, rollouts, draw)
        with untouched(rule.name, lambda: policy.state | {"its input": [vars(rollouts), vars(reading), further]}):
            credit = credited(rule, self.control, rollouts, reading, draw, number, further)
        contrasts = contrast(traced(rollouts, credit.base, credit.advantages), Bootstrap(1))
        measured = {
            "accuracy": rollouts.accuracy,
            "mixed_groups": rollouts.mixed,
            "response_length": sum(rollouts.lengths) / len(rollouts.lengths),
            "entropy": reading.entropies[rollouts.mask].mean().item(),
            "credit_seconds": credit.seconds,
            **{f"contrast/{name}": math.nan if of.value is None else of.value for name, of in contrasts.items()},
            **{f"rule/{name}": value for name, value in credit.metrics.items()},
        }
        return measured | self._update(rollouts, credit, reading.log_probs, parts, first)

    def _update(
        self, rollouts: Rollouts, credit: StepCredit, old: torch.Tensor, parts: Sequence[torch.Tensor], first: Reading
    ) -> dict[str, float]:
        """Update on the rollouts once, in mini-batches, of which the first is already read; return mean metrics."""
        policy, rule, advantages = self.models.policy, self.rule, torch.zeros_like(old)
        advantages[rollouts.mask] = torch.cat(credit.advantages)
        values = defaultdict(list)
        for i, rows in enumerate(parts):
            mask, wanted = rollouts.mask[rows], advantages[rows]
            reading = policy.read(rollouts.sequences[rows], mask) if i else first
            if isinstance(rule, UpdateRule):
                seen = reading.entropies, reading.log_probs, old[rows]
                with untouched(rule.name, lambda seen=seen: policy.state | {"its input": seen}):
                    wanted, metrics = checked_advantages(rule, wanted, mask, *seen)
                for name, value in metrics.items():
                    values[f"rule/{name}"].append(value)
            clip = self.settings.clip_low, self.settings.clip_high
            result = policy_loss(reading.log_probs, old[rows], wanted, mask, clip)
            values["grad_norm"].append(policy.update(result.loss))
            values["loss"].append(result.loss.item())
            values["positive_credit"].append(wanted[mask].clamp(min=0).mean().item())  # a token
            values["negative_credit"].append(wanted[mask].clamp(max=0).mean().item())
            values["clip_ratio"].append(result.clip_ratio)
            values["kl"].append(result.kl)
        return {name: sum(each) / len(each) for name, each in values.items()}


def read_mini_batches(
    policy: Policy, rollouts: Rollouts, parts: Sequence[torch.Tensor], needs: Collection[str]
) -> tuple[Reading, Reading]:
    """Read all rollouts without gradients, and the first mini-batch with its graph, so that its update reuses it.

    Args:
        parts: the rollouts of each mini-batch.
        needs: of the rule; states are kept if they are among them.
    """
    readings = []
    for rows in parts:
        with torch.set_grad_enabled(not readings):
            states = "hidden_states" in needs, "source_states" in needs
            readings.append(policy.read(rollouts.sequences[rows], rollouts.mask[rows], *states))
    back = torch.cat(list(parts)).argsort()
    log_probs, entropies = (
        torch.cat([getattr(each, name).detach() for each in readings])[back] for name in ("log_probs", "entropies")
    )
    by_kind = {}
    for name in ("states", "source_states"):
        rows = [state for each in readings for state in getattr(each, name) or ()]
        by_kind[name] = [rows[i] for i in back] if rows else None
    return Reading(log_probs, entropies, **by_kind), readings[0]
