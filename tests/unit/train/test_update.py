"""The rollouts counted as trained are those of applied optimizer steps."""

import math
from types import SimpleNamespace

import openrlhf_on_cpu  # noqa: F401
import pytest
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer

from openrlhf_shear.train.carriers import FILLER
from openrlhf_shear.train.experience.fillers import shared_out, without_fillers
from openrlhf_shear.train.screen.outcome import NotFiniteError
from openrlhf_shear.train.update.actor import ShearPolicyActor
from openrlhf_shear.train.update.arrival import arrivals
from openrlhf_shear.train.update.average import WeightAverage
from openrlhf_shear.train.update.update import ActorSteps, Meter, refuse_broken_weights


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


class Trainer:
    """OpenRLHF's, as far as an update is watched; a micro-batch's loss is the sum of its lengths over all tokens."""

    def __init__(self, engine, dynamic_steps=(), tokens=1.0, use_loss=False, level="off"):
        algo = SimpleNamespace(kl=SimpleNamespace(use_loss=use_loss))
        algo.advantage = SimpleNamespace(is_correction_level=level)
        self.args = SimpleNamespace(train=SimpleNamespace(dynamic_batch_enable=bool(dynamic_steps)), algo=algo)
        self.actor_loss_fn = SimpleNamespace(token_level_loss=True)
        norms = {"dynamic_batch_num_tokens": [tokens] * 9, "dynamic_global_batch_size": [1.0] * 9}
        norms |= {"dynamic_indices": [[i] for i in range(len(dynamic_steps))], "items": list(dynamic_steps)}
        self.replay_buffer = SimpleNamespace(dynamic_optimizer_step=list(dynamic_steps), **norms)
        self.boundaries = []
        self.strategy = SimpleNamespace(
            begin_micro_batch=lambda engine, ends: self.boundaries.append(ends), get_grad_norm=lambda engine: 0.5
        )
        self._engine = engine

    def training_step(self, experience, kl_ctl, step, norm):
        self._engine.step()
        tokens = experience.action_mask.sum()
        metrics = {"policy_loss": experience.response_length.sum() / norm["batch_num_tokens"] * norm["dp_size"]}
        metrics |= {"length": experience.response_length, "kl": experience.response_length.float()}
        metrics |= {"ppo_kl": (experience.action_mask * 1.0).sum() / tokens, "actor_grad_norm": 0.1, "actor_lr": 1.0}
        weights = {"policy_loss": "token", "length": "sample", "kl": "sample", "ppo_kl": "token"}
        return {
            "metrics": metrics,
            "weights": weights | {"actor_grad_norm": None, "actor_lr": None},
            "num_samples": float(len(experience.sequences)),
            "num_action_tokens": float(tokens),
        }


def watched(engine, batches, tokens=1.0, **options):
    """Return the update of these micro-batches, and the result of each training step."""
    trainer = Trainer(engine, tokens=tokens, **options)
    steps = ActorSteps(trainer, engine)
    norm = (
        None if options.get("dynamic_steps") else {"dp_size": 1, "batch_num_tokens": tokens, "global_batch_size": 1.0}
    )
    with steps.watching():
        said = [trainer.training_step(batch, 0.0, number, norm) for number, batch in enumerate(batches)]
    return steps, said, trainer


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
    steps, *_ = watched(Engine(2, skip={1}), rollouts(6, failed={5}))
    assert (steps.trained, steps.applied_steps, steps.skipped_steps) == (3, 2, 1)
    assert steps.moved and steps.status()["actor_grad_norm"] == 0.5


def policy_actor(monkeypatch, epochs: int) -> ShearPolicyActor:
    """A policy actor whose updates train on four rollouts in optimizer steps of two; the last one's reward failed."""

    def fit(self, *_):
        for _ in range(epochs):
            for number, batch in enumerate(rollouts(4, failed={3})):
                norm = {"dp_size": 1, "batch_num_tokens": 4.0, "global_batch_size": 1.0}
                self.trainer.training_step(batch, 0.0, number, norm)

    monkeypatch.setattr(ShearPolicyActor.__bases__[-1], "fit", fit)
    made = object.__new__(ShearPolicyActor)
    engine = Engine(2)
    engine.module, made._rule, made.trainer = torch.nn.Linear(2, 1), None, Trainer(engine)
    made.trainer.max_epochs, made.actor = epochs, SimpleNamespace(model=engine)
    return made


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_rollout_counts_once_however_many_epochs_train_on_it(monkeypatch, epochs):
    actor = policy_actor(monkeypatch, epochs)
    assert actor.fit(0.0)["update/optimizer_steps"] == 2 * epochs
    assert (actor.take_trained(), actor.take_trained()) == (3, 0)


def test_an_update_that_breaks_a_weight_ends_the_run(monkeypatch):
    actor = policy_actor(monkeypatch, epochs=1)
    actor.actor.model.module.bias.data[0] = math.nan
    with pytest.raises(NotFiniteError, match="the policy's weight bias is NaN or infinite after an update"):
        actor.fit(0.0)


def test_rollouts_of_a_step_that_trained_the_critic_alone_are_not_the_policys(monkeypatch):
    """--critic.freezing_steps: upstream's buffer keeps them until the policy's first update."""
    actor = policy_actor(monkeypatch, epochs=1)
    actor.trainer.replay_buffer = NaiveReplayBuffer(1)
    actor.trainer.replay_buffer.items.append("a rollout that the policy was frozen for")
    actor.begin_update(0)
    assert not actor.trainer.replay_buffer.items


def test_dynamic_batches_without_some_rollouts_end_the_run():
    trainer = Trainer(Engine(1), dynamic_steps=[1, 1])
    trainer.replay_buffer.items.append("a rollout in no micro-batch")
    watching = ActorSteps(trainer, trainer._engine).watching()
    with pytest.raises(RuntimeError, match="dynamic batches had 2 of a rank's 3 rollouts"), watching:
        trainer.replay_buffer.items.clear()  # as upstream does


def test_an_update_whose_every_step_was_skipped_has_no_gradient_norm():
    steps, *_ = watched(Engine(2, skip={0, 1}), rollouts(4))
    assert not steps.moved and "actor_grad_norm" not in steps.status()


def test_an_update_out_of_step_is_an_error():
    with pytest.raises(RuntimeError, match="2 rollouts wait, 6 micro-batches in steps of 4"):
        watched(Engine(4), rollouts(6))


def test_deepspeed_is_told_where_an_optimizer_step_of_dynamic_batches_ends():
    engine = Engine(1)
    *_, trainer = watched(engine, rollouts(3), dynamic_steps=(0, 0, 1), tokens=6.0)
    assert trainer.boundaries == [False, False, True]
    *_, trainer = watched(Engine(1), rollouts(3))
    assert trainer.boundaries == [None] * 3, "with a fixed size its own counter knows"


def uneven():
    """Two micro-batches of 1 and 4 rollouts of 2 tokens, lengths 0 to 4."""
    made = rollouts(5)
    return [made[0], Experience.concat_experiences(made[1:], 0)]


@pytest.mark.parametrize("cut", ["fixed", "dynamic"])
def test_the_loss_shown_is_the_one_that_is_optimised(cut):
    """Upstream weighs 0/10 by 2 tokens and 10/10 by 8; the optimizer sees 10/10."""
    if cut == "fixed":  # two micro-batches a step: upstream's norm is for a mean over them
        steps, *_ = watched(Engine(2), uneven(), tokens=10.0 / 2)
    else:
        steps, *_ = watched(Engine(1), uneven(), dynamic_steps=(0, 1), tokens=10.0)
    assert steps.status()["policy_loss"] == pytest.approx(10.0 / 10.0)


def test_means_are_over_rollouts_or_over_tokens():
    first, second = rollouts(2)
    second.action_mask[0, 0] = True  # three tokens
    steps, *_ = watched(Engine(2), [first, second])
    status = steps.status()
    assert status["length"] == pytest.approx(0.5) and status["kl"] == pytest.approx((0 * 2 + 1 * 3) / 5)
    assert status["ppo_kl"] == pytest.approx(1.0) and status["actor_lr"] == 1e-4


def test_fillers_are_no_filtered_rollouts():
    """A mean of upstream's over rows, in which a filler counts as filtered; of 3 rollouts one is."""
    given = Experience.concat_experiences(rollouts(4), 0)
    given.info[FILLER] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    trainer = Trainer(Engine(1), tokens=8.0, level="seq")
    step = trainer.training_step

    def filtered(*of):
        status = step(*of)
        status["metrics"]["is_filter_ratio"], status["weights"]["is_filter_ratio"] = torch.tensor(2 / 4), "token"
        return status

    trainer.training_step = filtered
    steps = ActorSteps(trainer, trainer._engine)
    with steps.watching():
        trainer.training_step(given, 0.0, 0, {"dp_size": 1, "batch_num_tokens": 8.0, "global_batch_size": 1.0})
    assert steps.status()["is_filter_ratio"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("count", [1, 5, 8, 9, 16])
def test_an_incomplete_batch_is_filled_with_rows_of_no_weight(count, ranks):
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
    steps, said, _ = watched(Engine(4), batches)
    status = steps.status()
    assert status["length"] == pytest.approx(1.0) and all(math.isfinite(value) for value in status.values())
    assert all(step["num_action_tokens"] > 0 for step in said), "upstream divides by them"
    assert steps.trained == 3 and steps.applied_steps == 1


def test_ranks_are_joined_by_their_sums(monkeypatch):
    first, second = Meter(), Meter()
    first.add("a", 1.0, 1.0)
    second.add("a", 4.0, 2.0)
    second.add("b", 7.0, 1.0)
    second.add("b", float("nan"), 0.0)  # a mean over nothing
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)

    sent = []

    def gather(ranks, mine):
        sent.append(mine)
        ranks[:] = [sent[0], mine]

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    assert first.means() == {"a": 1.0}
    assert second.means() == {"a": 3.0, "b": 7.0}


@pytest.mark.parametrize("lost", [(), (0,), (0, 1), (3,), (0, 1, 2)])
def test_a_micro_batch_whose_gradient_is_lost_is_counted(lost):
    """Also beside bfloat16's rounding, and where micro-batches resemble each other."""
    draw = torch.Generator().manual_seed(0)
    common = torch.randn(64, generator=draw)
    parts = torch.stack([0.5 * common + torch.randn(64, generator=draw) for _ in range(4)]).double()
    held = sum((part for i, part in enumerate(parts) if i not in lost), torch.zeros(64, dtype=torch.float64))
    assert arrivals(parts, held.bfloat16().double()) == 4 - len(lost)


def test_the_loss_of_an_incomplete_batch_is_that_of_its_rollouts():
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


def test_gradients_that_cancel_are_not_lost():
    """As a group's advantages do, which sum to 0: in bfloat16 little of the sum is left but rounding."""
    draw = torch.Generator().manual_seed(0)
    first = torch.randn(64, generator=draw)
    parts = torch.stack([first, -first + 1e-3 * torch.randn(64, generator=draw)]).bfloat16()
    held = parts[0] + parts[1] + 4e-3 * torch.randn(64, generator=draw)
    assert arrivals(parts.double(), held.double()) == 2
    assert arrivals(parts.double(), parts[1].double()) == 1


def test_rounding_is_no_lost_gradient():
    """A micro-batch whose gradient is a thousandth of another's vanishes in a bfloat16 sum, and may."""
    draw = torch.Generator().manual_seed(0)
    parts = torch.randn(3, 64, generator=draw) * torch.tensor([[1.0], [1e-3], [1e-4]])
    held = sum(part.bfloat16() for part in parts)
    assert arrivals(parts.double(), held.double()) == 3


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_first_weight_that_is_not_finite_is_named(value):
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    refuse_broken_weights(module, "critic", "here")
    module[1].bias.data[1] = value
    with pytest.raises(NotFiniteError, match=r"the critic's weight 1\.bias is NaN or infinite here"):
        refuse_broken_weights(module, "critic", "here")


@pytest.mark.parametrize("held", [True, False])
def test_the_moving_average_begins_at_the_checkpoint_where_that_has_none(tmp_path, held, monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    module = torch.nn.Linear(2, 1)
    flat = [weight.data for weight in module.parameters()]
    engine = SimpleNamespace(
        zero_optimization_stage=lambda: 2, optimizer=SimpleNamespace(single_partition_of_fp32_groups=flat)
    )
    average = WeightAverage(engine)
    if held:
        average.parts = [torch.full_like(part, 7.0) for part in average.parts]
        average.save(tmp_path, 5)
    later = WeightAverage(engine)
    assert later.load(tmp_path) == (5 if held else 0)
    expected = average.parts if held else flat
    assert all(torch.equal(part, other) for part, other in zip(later.parts, expected, strict=True))
