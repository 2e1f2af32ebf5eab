"""Watched update: counts the rollouts in its optimizer steps, collects metrics, and checks for finite weights."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.utils.loss_utils import get_loss_batch_info

from openrlhf_shear.train.carriers import FAILED, FILLER
from openrlhf_shear.train.screen.outcome import NotFiniteError


class Meter:
    """Accumulator of an update's metrics on this rank; `means` joins the ranks.

    OpenRLHF weighs a micro-batch's loss by its tokens once too often, so that it reports another loss than it
    optimises. Here every metric is a sum over micro-batches and ranks, divided once, at the end. A loss is a sum over
    its units, tokens or sequences, divided by their number: over one optimizer step the optimised value, over several
    their mean, weighted by units. A mean over tokens is weighted by tokens, a mean over rollouts by rollouts. Fillers
    have no tokens, and do not count as rollouts.
    """

    def __init__(self):
        self._sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(self, name: str, value: float, weight: float) -> None:
        """Add a mean `value` with its `weight`; a value of weight 0 is ignored."""
        if weight:
            total = self._sums[name]
            total[0] += float(value) * weight
            total[1] += weight

    def add_loss(self, name: str, loss: float, mask: torch.Tensor, norm: dict, by_token: bool = True) -> None:
        """Add a micro-batch's loss from OpenRLHF's `aggregate_loss`.

        Args:
            mask: (B, A), its action tokens.
            norm: `aggregate_loss`' `dp_size`, `batch_num_tokens` and `global_batch_size`.
            by_token: whether the loss is a mean over tokens; otherwise it is a mean over sequences of token means.
        """
        units = mask.sum() if by_token else mask.any(-1).sum()
        whole = norm["batch_num_tokens"] if by_token else norm["global_batch_size"]
        if units := float(units):
            self.add(name, float(loss) * float(whole) / norm["dp_size"] / units, units)

    def means(self) -> dict[str, float]:
        """Return every metric over all ranks; every rank calls this."""
        ranks = [self._sums]
        if torch.distributed.is_initialized():
            ranks *= torch.distributed.get_world_size()
            torch.distributed.all_gather_object(ranks, dict(self._sums))
        totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for name, (value, weight) in (item for sums in ranks for item in sums.items()):
            totals[name][0] += value
            totals[name][1] += weight
        return {name: value / weight for name, (value, weight) in sorted(totals.items())}


_NOTHING = 1e-9  # tokens of a filler micro-batch, not 0: OpenRLHF divides by the sum for its progress bar


class WatchedSteps(ABC):
    """Replacement of the `training_step` of OpenRLHF's `ActorPPOTrainer` or `CriticPPOTrainer` during an update.

    Before a micro-batch it tells DeepSpeed whether an optimizer step ends there (`ShearStrategy.begin_micro_batch`);
    afterwards it measures. Rollouts count once their optimizer step is applied: DeepSpeed silently skips a step whose
    gradients are not finite.

    Attributes:
        meter: the update's metrics.
        trained: rollouts with a reward in applied optimizer steps.
        applied_steps, skipped_steps: numbers of optimizer steps.
        moved: whether an applied step had a gradient and a learning rate other than 0.
    """

    model = ""  # the prefix of the model's metrics

    def __init__(self, trainer, engine):
        self._trainer, self._engine, self._training_step = trainer, engine, trainer.training_step
        self.meter = Meter()
        self.trained = self.applied_steps = self.skipped_steps = self._waiting = 0
        self.moved = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Replace `training_step` inside the context.

        Raises:
            RuntimeError: the update ended between two optimizer steps, or without some of the rollouts.
        """
        self._trainer.training_step = self
        held = len(self._trainer.replay_buffer.items)  # upstream clears it in the end
        try:
            yield
        finally:
            self._trainer.training_step = self._training_step
        micro_steps, each = self._engine.micro_steps, self._engine.gradient_accumulation_steps()
        if self._waiting or micro_steps % each:
            raise RuntimeError(
                f"the update ended between two optimizer steps: {self._waiting} rollouts wait, {micro_steps} "
                f"micro-batches in steps of {each}; please report this"
            )

        if self._trainer.args.train.dynamic_batch_enable:
            had = sum(map(len, self._trainer.replay_buffer.dynamic_indices))
            if had != held:
                raise RuntimeError(f"dynamic batches had {had} of a rank's {held} rollouts; please report this")

    def status(self) -> dict[str, float]:
        """Return the update's metrics over all ranks; every rank calls this."""
        return self.meter.means() | {f"{self.model}_lr": self._engine.get_lr()[0]}

    def __call__(self, experience: Experience, *args) -> dict:
        """Train on a micro-batch as upstream does; `args` end with its number in the update and its loss norm."""
        *others, step, norm = args
        trainer, engine, dynamic = self._trainer, self._engine, self._trainer.args.train.dynamic_batch_enable
        nobody = torch.zeros(len(experience.sequences))
        fillers = torch.as_tensor(experience.info.pop(FILLER, nobody)).flatten().bool().cpu()
        failed = torch.as_tensor(experience.info.get(FAILED, nobody)).flatten().bool().cpu()
        steps, skipped, rate = engine.global_steps, engine.skipped_steps, max(engine.get_lr())
        norm = norm or get_loss_batch_info(
            trainer.strategy, experience.action_mask, replay_buffer=trainer.replay_buffer, step=step, dynamic_batch=True
        )
        ends = bool(trainer.replay_buffer.dynamic_optimizer_step[step]) if dynamic else None
        trainer.strategy.begin_micro_batch(engine, ends)
        status = self._training_step(experience, *others, step, norm)
        self._waiting += int((~fillers & ~failed).sum())
        self._measure(status, experience.action_mask, ~fillers, norm)
        if engine.global_steps > steps:
            applied = engine.skipped_steps == skipped
            self.skipped_steps += not applied
            if applied:
                gradient = trainer.strategy.get_grad_norm(engine)
                self.meter.add(f"{self.model}_grad_norm", gradient, 1.0)
                self.trained, self.applied_steps = self.trained + self._waiting, self.applied_steps + 1
                self.moved |= gradient > 0 and rate > 0
            self._waiting = 0
        return status

    @abstractmethod
    def _measure(self, status: dict, mask: torch.Tensor, rollouts: torch.Tensor, norm: dict) -> None:
        """Add a micro-batch's numbers to the meter.

        Args:
            status: upstream's result.
            mask: (B, A), its action tokens.
            rollouts: (B,) bool, False for fillers.
            norm: the norm of the loss.
        """


class ActorSteps(WatchedSteps):
    """Watched steps of the policy.

    Attributes:
        rule_metrics: the micro-batch's metrics from a credit rule that acts in the update; emptied after each.
    """

    model = "actor"

    def __init__(self, trainer, engine):
        super().__init__(trainer, engine)
        self.rule_metrics: list[dict[str, float]] = []
        args = trainer.args
        # Losses that upstream divides by the optimizer step's tokens or sequences, and then weighs by tokens again.
        self._losses = {"policy_loss": trainer.actor_loss_fn.token_level_loss, "entropy_loss": True}
        if args.algo.kl.use_loss:
            self._losses["kl"] = True
        self._by_sequence = {"is_filter_ratio"} if args.algo.advantage.is_correction_level == "seq" else set()

    def _measure(self, status: dict, mask: torch.Tensor, rollouts: torch.Tensor, norm: dict) -> None:
        tokens, rows = float(mask.sum()), float(rollouts.sum())
        for name, value in status["metrics"].items():
            kind = status["weights"][name]
            if name in self._losses:
                self.meter.add_loss(name, value, mask, norm, by_token=self._losses[name])
            elif name in self._by_sequence:  # a mean over all rows, in which fillers count as 1
                if rows:
                    self.meter.add(name, (value * len(rollouts) - (len(rollouts) - rows)) / rows, rows)
            elif kind == "token":
                self.meter.add(name, value, tokens)
            elif kind == "sample" and name in ("kl", "logprobs_diff"):  # means over each rollout's tokens
                lengths = mask.sum(1).to(value)
                self.meter.add(name, (value.flatten() * lengths).sum() / max(tokens, 1.0), tokens)
            elif kind == "sample" and rows:
                self.meter.add(name, value.float().cpu()[rollouts].mean(), rows)
        for metrics in self.rule_metrics:
            for name, value in metrics.items():
                self.meter.add(name, value, tokens)
        self.rule_metrics.clear()
        status["num_action_tokens"] = status["num_action_tokens"] or _NOTHING


class CriticSteps(WatchedSteps):
    """Watched steps of the critic."""

    model = "critic"

    def _measure(self, status: dict, mask: torch.Tensor, rollouts: torch.Tensor, norm: dict) -> None:
        self.meter.add_loss("critic_loss", status["critic_loss"], mask, norm)
        self.meter.add("values", status["values"], float(mask.sum()))


@torch.no_grad()
def refuse_broken_weights(module: torch.nn.Module, model: str, when: str) -> None:
    """Raise NotFiniteError if a parameter of the model is not finite on any rank; every rank calls this."""
    names, flags = [], []
    for name, parameter in module.named_parameters():
        values = getattr(parameter, "ds_tensor", parameter.data)  # this rank's shard under ZeRO-3
        names.append(name)
        flags.append(values.isfinite().all())
    broken = ~torch.stack(flags)
    if torch.distributed.is_initialized():
        counts = broken.to(torch.int32)
        torch.distributed.all_reduce(counts)
        broken = counts > 0
    if any(found := broken.tolist()):
        raise NotFiniteError(f"the {model}'s weight {names[found.index(True)]} is NaN or infinite {when}")
