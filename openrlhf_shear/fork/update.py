"""An update, watched: which rollouts an optimizer step was really made of, and whether weights stayed finite."""

import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_shear.fork.fillers import FILLER
from openrlhf_shear.fork.samples import FAILED

_NOTHING = 1e-9  # how many rollouts or tokens a micro-batch of fillers counts as: upstream divides by their sum


class WatchedSteps:
    """In place of `ActorPPOTrainer.training_step` during one update.

    Rollouts count when the optimizer step that they are part of has been applied; DeepSpeed skips one whose gradients
    are not finite, and says nothing.

    Attributes:
        trained, skipped: rollouts with a reward in optimizer steps that were applied, and that were not.
        applied_steps, skipped_steps: of the optimizer.
        moved: whether an applied step had a gradient and a learning rate other than 0.
    """

    def __init__(self, training_step, engine):
        """`engine` is DeepSpeed's."""
        self._training_step, self._engine = training_step, engine
        self.trained = self.skipped = self.applied_steps = self.skipped_steps = self._waiting = 0
        self.moved = False

    def __call__(self, experience: Experience, *args, **kwargs) -> dict:
        nobody = torch.zeros(len(experience.sequences))
        fillers = torch.as_tensor(experience.info.pop(FILLER, nobody)).flatten().bool().cpu()
        failed = torch.as_tensor(experience.info.get(FAILED, nobody)).flatten().bool().cpu()
        steps, skipped, rate = self._engine.global_steps, self._engine.skipped_steps, max(self._engine.get_lr())
        status = self._training_step(experience, *args, **kwargs)
        self._waiting += int((~fillers & ~failed).sum())
        metrics = status["metrics"]
        if self._engine.global_steps > steps:
            if self._engine.skipped_steps > skipped:
                self.skipped, self.skipped_steps = self.skipped + self._waiting, self.skipped_steps + 1
                metrics["actor_grad_norm"] = float("nan")  # DeepSpeed still has that of the step before
            else:
                self.trained, self.applied_steps = self.trained + self._waiting, self.applied_steps + 1
                self.moved |= metrics["actor_grad_norm"] > 0 and rate > 0
            self._waiting = 0
        if fillers.any():
            _leave_out(status, fillers)
        return status

    def finish(self) -> None:
        """After the update.

        Raises:
            RuntimeError: rollouts are left that no optimizer step has seen: the gradient accumulation is out of step.
        """
        micro_steps, each = self._engine.micro_steps, self._engine.gradient_accumulation_steps()
        if self._waiting or micro_steps % each:
            raise RuntimeError(
                f"the update ended between two optimizer steps: {self._waiting} rollouts wait, {micro_steps} "
                f"micro-batches in steps of {each}; please report this"
            )


def _leave_out(status: dict, fillers: torch.Tensor) -> None:
    """Take fillers out of what upstream averages over rows and over tokens."""
    metrics, weights = status["metrics"], status["weights"]
    for name, weight in weights.items():
        value = metrics[name]
        if weight == "sample" and isinstance(value, torch.Tensor) and value.dim():
            metrics[name] = value[~fillers.to(value.device)] if not fillers.all() else torch.zeros(1)
        elif weight == "token" and not status["num_action_tokens"]:
            metrics[name] = 0.0  # a mean over no token
    status["num_samples"] = float((~fillers).sum()) or _NOTHING
    status["num_action_tokens"] = status["num_action_tokens"] or _NOTHING


@torch.no_grad()
def first_not_finite(module: torch.nn.Module) -> str:
    """The first parameter that is not finite on any rank, "" if there is none; every rank calls this."""
    names, flags = [], []
    for name, parameter in module.named_parameters():
        values = getattr(parameter, "ds_tensor", parameter.data)  # this rank's part of it under ZeRO-3
        names.append(name)
        flags.append(values.isfinite().all())
    broken = ~torch.stack(flags)
    if torch.distributed.is_initialized():
        counts = broken.to(torch.int32)
        torch.distributed.all_reduce(counts)
        broken = counts > 0
    return next((name for name, out in zip(names, broken.tolist(), strict=True) if out), "")
