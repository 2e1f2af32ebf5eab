"""Advantages and omega through real DeepSpeed actors: upstream's numbers where they must agree, ours in every mode."""

import copy
from dataclasses import replace

import pytest
import torch

from openrlhf_shear.config.spec import OutcomeConfig
from openrlhf_shear.train.experience.schedule import PAIR_SECONDS

from .conftest import advantages_by_rollout, credited_step, weights_of

# The model is bf16: batched, packed and sharded passes round differently, by up to 2^-8 relative an element. Measured
# over the modes below: omega (standard deviation 0.23 here) differs by at most 0.0065.
OMEGA_NOISE = 0.02


def omega_by_rollout(maker, samples):
    return weights_of(credited_step(maker, samples))


def worst_difference(omega, reference):
    assert omega.keys() == reference.keys()
    return max((omega[i] - reference[i]).abs().max().item() for i in reference)


def lab_rollouts(samples, args):
    """The same rollouts as the lab's sampler returns them, without first errors."""
    from openrlhf_shear.lab.rollouts import Rollouts

    def padded(rows):
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

    mask = padded([sample.action_mask[0].bool() for sample in samples])
    return Rollouts(
        sequences=padded([sample.sequences[0] for sample in samples]),
        mask=mask,
        lengths=tuple(mask.sum(1).tolist()),
        correct=tuple(sample.scores.item() >= args.credit.outcome.correct_threshold for sample in samples),
        first_errors=(None,) * len(samples),
        group_size=args.rollout.n_samples_per_prompt,
        tokenizer=None,
    )


def with_threshold(strategy, threshold: float) -> None:
    strategy.args.credit = replace(strategy.args.credit, outcome=OutcomeConfig(threshold))


@pytest.fixture
def reference(plain, maker, rollouts):
    omega = omega_by_rollout(maker(*plain), rollouts(5))
    spread = torch.cat(list(omega.values()))
    assert spread.std() > 5 * OMEGA_NOISE, "omega must vary by more than the tolerance, or comparing shows nothing"
    return omega


def test_advantages_are_group_norm_times_omega_and_the_metrics_are_omega_s(plain, maker, rollouts):
    group, strategy = plain
    ours, samples = maker(group, strategy), rollouts(5)
    base = advantages_by_rollout(maker(group, strategy, upstream=True).make_experience_batch(rollouts(5)))
    made = credited_step(ours, samples)
    got, metrics, omega = advantages_by_rollout(made.experiences), ours.credit_metrics, weights_of(made)
    for i, sample in enumerate(samples):
        assert len(omega[i]) == int(sample.action_mask.sum())
        torch.testing.assert_close(got[i], base[i] * omega[i], atol=0, rtol=0)
        assert torch.equal(got[i].sign(), base[i].sign())
    assert samples[3].action_mask.sum() < samples[3].response_length, "the last rollout of a group has a gap"
    assert metrics["shear/mixed_groups"] == 1.0 and metrics["shear/credit_seconds"] > 0
    assert metrics["shear/nonfinite_rollouts"] == metrics["shear/unconverged_fraction"] == 0.0
    right = torch.cat([omega[i] for i in omega if i % 2 == 0])
    everything = torch.cat(list(omega.values()))
    for name, value in (("mean", everything.mean()), ("max", everything.max()), ("correct", right.mean())):
        assert metrics[f"shear/omega_{name}"] == pytest.approx(value.item(), rel=1e-5)


def test_the_lab_has_the_advantages_and_the_loss_of_training(plain, policy, maker, rollouts):
    """The credit lab on the same rollouts. Its bf16 pass rounds differently: omega is off by 0.004 at most."""
    from openrlhf.models.loss import PolicyLoss

    from openrlhf_shear.credit.rules.shear import ShearRule
    from openrlhf_shear.lab.credit import credited
    from openrlhf_shear.lab.policy import Policy
    from openrlhf_shear.lab.settings import LabSettings
    from openrlhf_shear.lab.trainer import policy_loss
    from openrlhf_shear.train.experience.fillers import without_fillers

    group, strategy = plain
    base = advantages_by_rollout(maker(group, strategy, upstream=True).make_experience_batch(rollouts(5)))
    experiences = without_fillers(maker(group, strategy).make_experience_batch(rollouts(5)))
    expected = advantages_by_rollout(experiences)
    same = lab_rollouts(rollouts(5), strategy.args)
    with torch.no_grad():
        reading = Policy(policy, LabSettings(precision="bfloat16")).read(same.sequences, same.mask, states=True)
    got = credited(ShearRule(strategy.args.credit.config), None, same, reading, 0)
    assert expected.keys() == set(range(len(got.advantages)))
    for i, advantages in enumerate(got.advantages):
        assert got.base[i] == pytest.approx(base[i][0].item(), rel=1e-6) and (base[i] == base[i][0]).all()
        torch.testing.assert_close(advantages, expected[i], atol=OMEGA_NOISE * abs(got.base[i]), rtol=0)

    advantages, old = torch.zeros_like(reading.log_probs), torch.zeros_like(reading.log_probs)
    for experience in experiences:
        for row, i in enumerate(experience.index):
            kept = experience.action_mask[row].bool()
            advantages[i, same.mask[i]] = experience.advantages[row][kept]
            old[i, same.mask[i]] = experience.action_log_probs[row][kept].float()
    low, high = strategy.args.actor.eps_clip_low_high
    upstream = PolicyLoss(clip_eps_low=low, clip_eps_high=high)
    noise = 0.3 * torch.randn(old.shape, generator=torch.Generator().manual_seed(0))
    for ratios in (noise, torch.where(noise > 0.3, 25.0, noise)):  # where exp would overflow: it is cut off at 20
        ours, theirs = ((old + ratios).requires_grad_() for _ in range(2))
        got = policy_loss(ours, old, advantages, same.mask, (low, high))
        loss, clip_ratio, *_ = upstream(theirs, old, advantages, same.mask, batch_num_tokens=same.mask.sum())
        got.loss.backward()
        loss.backward()
        assert 0.1 < clip_ratio < 0.9
        # the same float32 terms, summed in another order
        assert (got.loss.item(), got.clip_ratio) == pytest.approx((loss.item(), clip_ratio.item()), rel=1e-5, abs=1e-6)
        logs = (ours - old).detach()[same.mask].double().clamp(-20, 20)  # OpenRLHF's kl is k1, the lab's is k3
        assert got.kl == pytest.approx((logs.exp() - 1 - logs).mean().item(), rel=1e-5)
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("mode", ["fixed", "dynamic"])
def test_failed_rewards_have_no_advantage_and_count_nowhere(plain, maker, rollouts, mode):
    group, strategy = plain
    strategy = copy.deepcopy(strategy)
    strategy.args.train.dynamic_batch_enable = mode == "dynamic"
    failed, samples = {1, 4, 6, 8, 9, 10, 11}, rollouts(4)  # one of group 0, two of 1, all of 2, none of 3
    for i, sample in enumerate(samples):
        sample.info["reward_failed"] = torch.tensor([float(i in failed)])
        if i in failed:
            sample.rewards = sample.scores = torch.tensor([7.0])  # a placeholder that would show
    ours = maker(group, strategy)
    made = credited_step(ours, samples)
    got, size = advantages_by_rollout(made.experiences), strategy.args.rollout.n_samples_per_prompt
    weights = weights_of(made)
    for start in range(0, len(samples), size):
        valid = [i for i in range(start, start + size) if i not in failed]
        rewards = torch.tensor([float(i % 2 == 0) for i in valid], dtype=torch.float64)
        norm = (rewards - rewards.mean()) / (rewards.std() + 1e-9) if len(valid) > 1 else rewards
        for i, advantage in zip(valid, norm.tolist(), strict=True):
            # float32 sums of four rewards
            torch.testing.assert_close(got[i], advantage * weights[i], atol=1e-5, rtol=1e-5)
        for i in set(range(start, start + size)) - set(valid):
            assert not got[i].any() and (weights[i] == 1).all()
    assert {i for i, omega in weights.items() if (omega != 1).any()} == {0, 2, 3, 12, 13, 14, 15}
    logged = torch.cat([experience.info["reward"] for experience in made.experiences])
    assert logged.max() <= 1.0, "placeholders are not logged as rewards"


def test_reward_model_decides_correctness(cluster, plain, policy, maker, rollouts):
    """A reward model's rewards are known only during experience making, so credit waits for them."""
    from openrlhf.trainer.ray.launcher import RayActorGroup, RewardModelActor

    group, strategy = plain
    strategy = copy.deepcopy(strategy)
    judges = RayActorGroup(1, 1, RewardModelActor, num_gpus_per_actor=0.2)
    cluster.get(judges.async_init_model_from_pretrained(strategy, str(policy)))
    samples = rollouts(5)
    for sample in samples:
        sample.rewards = sample.scores = None
        del sample.info["reward"], sample.info["score"]
    ours = maker(group, strategy)
    ours.reward_model_group = judges
    split = ours.split_rollout_samples(samples)
    batches = {"sequences": [s.sequences for s in split], "attention_mask": [s.attention_mask for s in split]}
    rewards = torch.cat(cluster.get(judges.async_run_method_batch("forward", **batches))[0]).float()
    with_threshold(strategy, rewards.median().item())

    made = credited_step(ours, samples)
    judges.stop()
    judged = {i: c for group in made.groups for i, c in zip(group.rollouts, group.correct, strict=True)}
    assert [judged[i] for i in range(20)] == (rewards >= rewards.median()).tolist()
    assert len(set(judged.values())) == 2 and ours.credit_metrics["shear/mixed_groups"] > 0


@pytest.mark.parametrize("change", [("rollout", "micro_batch_size", 1), ("train", "dynamic_batch_enable", True)])
def test_small_and_dynamic_micro_batches_give_the_same_omega(plain, maker, rollouts, reference, change):
    group, strategy = plain
    other, (section, name, value) = copy.deepcopy(strategy), change
    setattr(getattr(other.args, section), name, value)
    assert worst_difference(omega_by_rollout(maker(group, other), rollouts(5)), reference) < OMEGA_NOISE


def test_packing_gives_the_same_omega(actor_group, arguments, maker, rollouts, reference):
    args = arguments("--ds.packing_samples", "--ds.attn_implementation", "flash_attention_2")
    group, strategy = actor_group(args)
    assert strategy.args.ds.attn_implementation == "sdpa"
    assert worst_difference(omega_by_rollout(maker(group, strategy), rollouts(5)), reference) < OMEGA_NOISE
    strategy.args.train.dynamic_batch_enable = True
    assert worst_difference(omega_by_rollout(maker(group, strategy), rollouts(5)), reference) < OMEGA_NOISE


def test_two_ranks_share_what_one_of_them_has_seen(actor_group, arguments, maker, rollouts, reference, monkeypatch):
    """One rank has three of five groups. Where only the first two of them have work, one goes to the other rank."""
    group, strategy = actor_group(arguments("--actor.num_gpus_per_node", "2"))
    ours = maker(group, strategy)
    assert worst_difference(omega_by_rollout(ours, rollouts(5)), reference) < OMEGA_NOISE
    assert ours.pair_seconds != PAIR_SECONDS, "measured"
    # it is cheaper to weigh groups this small than to move them
    monkeypatch.setattr(f"{type(ours).__module__}.TOKEN_SECONDS", 0.0)
    shares = []
    plan = type(ours)._shares
    monkeypatch.setattr(type(ours), "_shares", lambda *given: shares.append(plan(*given)) or shares[-1])
    samples = rollouts(5)
    for sample in samples[8:]:  # only the first two groups are mixed
        sample.rewards = sample.scores = torch.ones(1)
    made = credited_step(ours, samples)
    assert sorted(len({0, 1} & set(share)) for share in shares[0]) == [1, 1]
    assert (
        worst_difference({i: weights_of(made)[i] for i in range(8)}, {i: reference[i] for i in range(8)}) < OMEGA_NOISE
    )
    assert all((weights == 1).all() for i, weights in weights_of(made).items() if i >= 8)
    assert ours.credit_metrics["shear/mixed_groups"] == 0.4 and ours.credit_metrics["shear/credit_seconds"] > 0
    assert len(made.groups) == 5
