"""What an update is said to have trained on is what optimizer steps applied."""

import math
from types import SimpleNamespace

import pytest
import torch

from openrlhf_shear.fork import cpu_backend

cpu_backend.install()  # the modules below import OpenRLHF's

from openrlhf.trainer.ppo_utils.experience import Experience  # noqa: E402

from openrlhf_shear.fork.fillers import FILLER, shared_out, without_fillers  # noqa: E402
from openrlhf_shear.fork.update import WatchedSteps, first_not_finite  # noqa: E402


class Engine:
    """DeepSpeed's counters: an optimizer step every `each` micro-batches, skipped where it is said so."""

    def __init__(self, each, skip=()):
        self.micro_steps = self.global_steps = self.skipped_steps = 0
        self._each, self._skip = each, skip

    def gradient_accumulation_steps(self):
        return self._each

    def get_lr(self):
        return [1e-4]

    def step(self):
        self.micro_steps += 1
        if self.micro_steps % self._each == 0:
            self.skipped_steps += self.global_steps in self._skip
            self.global_steps += 1


def watched(engine, batches):
    def training_step(experience):
        engine.step()
        tokens = experience.action_mask.sum()
        mean = (experience.action_mask * 1.0).sum() / tokens
        return {
            "metrics": {"length": experience.response_length, "ppo_kl": mean, "actor_grad_norm": 0.5, "actor_lr": 1.0},
            "weights": {"length": "sample", "ppo_kl": "token", "actor_grad_norm": None, "actor_lr": None},
            "num_samples": float(len(experience.sequences)),
            "num_action_tokens": float(tokens),
        }

    watch = WatchedSteps(training_step, engine)
    return watch, [watch(batch) for batch in batches]


def rollouts(count, failed=()):
    """One batch each, of 4 tokens and 2 actions; the number of the rollout is its length."""
    ones = torch.ones(1, 4, dtype=torch.long)
    return [
        Experience(
            sequences=ones + i,
            attention_mask=ones,
            action_mask=torch.tensor([[0, 1, 1]]),
            action_log_probs=torch.full((1, 3), -1.0),
            advantages=torch.full((1, 3), float(i)),
            response_length=torch.tensor([float(i)]),
            total_length=torch.tensor([4.0]),
            index=[i],
            prompts=["p"],
            labels=["l"],
            images=[None],
            mm_train_inputs=[None],
            info={"reward_failed": torch.tensor([float(i in failed)])},
        )
        for i in range(count)
    ]


def test_rollouts_count_when_their_optimizer_step_is_applied():
    watch, said = watched(Engine(2, skip={1}), rollouts(6, failed={5}))
    assert (watch.trained, watch.skipped, watch.applied_steps, watch.skipped_steps) == (3, 2, 2, 1)
    assert watch.moved and math.isnan(said[3]["metrics"]["actor_grad_norm"])
    watch.finish()


def test_an_update_out_of_step_is_an_error():
    watch, _ = watched(Engine(4), rollouts(6))
    assert watch.trained == 4
    with pytest.raises(RuntimeError, match="2 rollouts wait, 6 micro-batches in steps of 4"):
        watch.finish()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("count", [1, 5, 8, 9, 16])
def test_a_rest_is_completed_by_rows_that_weigh_nothing(count, ranks):
    given = rollouts(count)
    shared = shared_out(given, 8, 2, [ranks], 0, dynamic=False)
    real = [i for experience in shared for i in experience.index if i >= 0]
    assert real == list(range(count)) and sum(len(e.sequences) for e in shared) % 8 == 0
    chunk = -(-len(shared) // ranks)
    assert len({sum(len(e.sequences) for e in shared[r * chunk : (r + 1) * chunk]) for r in range(ranks)}) == 1
    assert sum(e.action_mask.sum() for e in shared) == 2 * count, "fillers have no action"
    kept = without_fillers(shared)
    assert torch.equal(torch.cat([e.response_length for e in kept]), torch.arange(float(count)))
    if count % 8 == 0:
        assert FILLER not in shared[0].info


def test_metrics_are_of_rollouts_alone():
    batches = shared_out(rollouts(3), 8, 2, [1], 0, dynamic=False)
    watch, said = watched(Engine(4), batches)
    rows, tokens = (sum(one[name] for one in said) for name in ("num_samples", "num_action_tokens"))
    length = sum(one["metrics"]["length"].mean() * one["num_samples"] for one in said) / rows
    assert length == pytest.approx(1.0) and rows == pytest.approx(3) and tokens == pytest.approx(6)
    assert all(math.isfinite(one["metrics"]["ppo_kl"]) for one in said)
    assert watch.trained == 3 and watch.applied_steps == 1
    watch.finish()


def test_the_loss_of_a_rest_is_that_of_its_rollouts():
    """Upstream's own sums: a token mean over the whole optimizer step, of fillers and rollouts or of rollouts alone."""
    from openrlhf.models.loss import PolicyLoss
    from openrlhf.utils.loss_utils import iter_grad_accum_global_norm

    loss = PolicyLoss(0.2, 0.2)

    def total(batches, gas):
        strategy = SimpleNamespace()
        each = iter_grad_accum_global_norm(batches, strategy, gas, lambda e: e.action_mask)
        # DeepSpeed divides each by the number of micro-batches
        return sum(
            loss(e.action_log_probs, e.action_log_probs, e.advantages, e.action_mask, **norm)[0] / gas
            for e, norm in each
        )

    for count in (1, 3, 5):
        alone = total([Experience.concat_experiences(rollouts(count), 0)], 1)
        padded = total(shared_out(rollouts(count), 8, 2, [1], 0, dynamic=False), 4)
        assert padded.item() == pytest.approx(alone.item(), rel=1e-6)  # the same float32 terms in another order


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_first_weight_that_is_not_finite_is_named(value):
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    assert first_not_finite(module) == ""
    module[1].bias.data[1] = value
    assert first_not_finite(module) == "1.bias"
