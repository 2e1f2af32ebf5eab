"""The learning-rate schedules that a run can have are those that OpenRLHF's call of transformers can make and step."""

import inspect

import openrlhf_on_cpu  # noqa: F401
import torch
from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy
from transformers.optimization import get_scheduler
from transformers.trainer_utils import SchedulerType

from openrlhf_shear.line.flags import SCHEDULES

STEPS = 10


def rates(name: str) -> list[float]:
    """Rates of a schedule, made as `DeepspeedStrategy._ds_init_train_model` makes it, and stepped as DeepSpeed does."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    special = {"min_lr_rate": 0.1} if name in {"cosine_with_min_lr", "cosine_warmup_with_min_lr"} else {}
    numbers = {"num_warmup_steps": 1, "num_training_steps": STEPS}
    schedule, found = get_scheduler(name, optimizer, **numbers, scheduler_specific_kwargs=special), []
    for _ in range(STEPS):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_every_schedule_that_can_be_stepped_is_known_and_no_other():
    works = []
    for name in (kind.value for kind in SchedulerType):
        try:
            if all(rate >= 0 for rate in rates(name)):
                works.append(name)
        except (TypeError, ValueError):
            continue
    assert sorted(works) == sorted(SCHEDULES)


def test_openrlhf_makes_a_schedule_with_these_arguments():
    source = inspect.getsource(DeepspeedStrategy._ds_init_train_model)
    assert 'scheduler_name in {"cosine_with_min_lr", "cosine_warmup_with_min_lr"}' in source
    assert "scheduler_specific_kwargs=scheduler_kwargs" in source
