"""From rewards to token advantages: clips, baselines, KL rewards and weights, against float64 sums by hand."""

import math
import random
from types import SimpleNamespace

import openrlhf_on_cpu  # noqa: F401
import pytest
import torch
from openrlhf.models import PolicyLoss
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

from openrlhf_shear.config.spec import OutcomeConfig
from openrlhf_shear.credit.rule import GroupCredit
from openrlhf_shear.credit.rules.uniform import UniformRule
from openrlhf_shear.train.carriers import FAILED
from openrlhf_shear.train.experience.experience_maker import CreditExperienceMaker, Step
from openrlhf_shear.train.experience.graded_experience import (
    GradedExperienceMaker,
    NothingToTrainError,
    sums_from_each_token,
)
from openrlhf_shear.train.run.learner import Learner
from openrlhf_shear.train.screen.outcome import RefusedError

SIZE, KL = 4, 0.05  # rollouts a prompt; the KL coefficient


def maker(kind, estimator: str, clip=None, kl_coef: float = 0.0):
    advantage = SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False, is_correction_level="off")
    shape = {"overlong_buffer_len": None, "stop_properly_penalty_coef": None, "clip_range": clip}
    args = SimpleNamespace(
        algo=SimpleNamespace(advantage=advantage),
        reward=SimpleNamespace(**shape),
        rollout=SimpleNamespace(n_samples_per_prompt=SIZE),
    )
    rule = {"rule": UniformRule()} if kind is CreditExperienceMaker else {}
    return kind(*[None] * 4, SimpleNamespace(value=kl_coef), SimpleNamespace(args=args), None, **rule)


def batches(rewards: list[float], with_kl: bool = False, lengths=None, failed=()) -> list[Experience]:
    """Rollouts in batches of three, each with a prompt of two tokens before it and its own number of tokens."""
    generator = torch.Generator().manual_seed(len(rewards))
    lengths = lengths or [3 + i % 4 for i in range(len(rewards))]
    made = []
    for start in range(0, len(rewards), 3):
        rows = range(start, min(start + 3, len(rewards)))
        mask = torch.zeros(len(rows), 1 + max(lengths), dtype=torch.long)
        for row, i in enumerate(rows):
            mask[row, 1 : 1 + lengths[i]] = 1
        kl = torch.randn(mask.shape, generator=generator) if with_kl else torch.zeros(mask.shape)
        made.append(
            Experience(
                index=list(rows),
                action_mask=mask,
                kl=kl,
                rewards=torch.tensor([rewards[i] for i in rows]),
                values=torch.zeros(mask.shape),
                info={FAILED: torch.tensor([float(i in failed) for i in rows])},
            )
        )
    return made


def advantages_of(experiences) -> list[list[float]]:
    rows = {
        i: e.advantages[row, mask].tolist()
        for e in experiences
        for row, (i, mask) in enumerate(zip(e.index, e.action_mask.bool(), strict=True))
    }
    return [rows[i] for i in sorted(rows)]


def group_norm(rewards: list[float]) -> list[float]:
    mean = math.fsum(rewards) / len(rewards)
    deviation = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return [(r - mean) / (deviation + 1e-9) for r in rewards]


REWARDS = [0.0, 3.0, 20.0, -30.0, 1.0, 1.0, 0.0, 0.5]


@pytest.mark.parametrize("estimator", ["group_norm", "rloo", "dr_grpo", "reinforce_baseline", "flash_reinforce"])
@pytest.mark.parametrize("clip", [(-2.0, 2.0), (-0.25, 0.25), None])
def test_rewards_are_clipped_before_the_baseline(estimator, clip):
    """After it, as upstream does, a group's advantages no longer sum to 0."""
    made = batches(REWARDS)
    got = advantages_of(maker(GradedExperienceMaker, estimator, clip).compute_advantages_and_returns(made))
    clipped = [min(max(r, clip[0]), clip[1]) if clip else r for r in REWARDS]
    groups = [clipped[:SIZE], clipped[SIZE:]]
    if estimator == "group_norm":
        expected = [a for group in groups for a in group_norm(group)]
    elif estimator == "rloo":
        expected = [r - (sum(group) - r) / (SIZE - 1) for group in groups for r in group]
    elif estimator == "flash_reinforce":
        expected = [r - sum(clipped) / len(clipped) for r in clipped]
    else:
        expected = [r - sum(group) / SIZE for group in groups for r in group]
    if estimator == "reinforce_baseline":  # whitened over tokens
        tokens = [a for a, row in zip(expected, got, strict=True) for _ in row]
        mean = sum(tokens) / len(tokens)
        deviation = math.sqrt(sum((a - mean) ** 2 for a in tokens) / len(tokens))
        expected = [(a - mean) / deviation for a in expected]
    for row, value in zip(got, expected, strict=True):
        assert row == pytest.approx([value] * len(row), rel=1e-5, abs=1e-6)
    if estimator in ("group_norm", "rloo", "dr_grpo"):
        assert abs(sum(row[0] for row in got[:SIZE])) < 1e-5
    assert torch.cat([e.info["reward"] for e in made]).tolist() == pytest.approx(clipped), "what is shown is trained on"


@pytest.mark.parametrize("estimator", ["gae", "reinforce"])
def test_without_a_baseline_the_clip_is_upstream_s(estimator):
    ours, theirs = (
        advantages_of(maker(kind, estimator, (-2.0, 2.0)).compute_advantages_and_returns(batches(REWARDS)))
        for kind in (GradedExperienceMaker, RemoteExperienceMaker)
    )
    assert ours == theirs


@pytest.mark.parametrize("estimator", ["group_norm", "reinforce"])
def test_the_return_is_of_response_tokens_alone(estimator):
    """Upstream adds the KL of prompt tokens and of tool outputs to the logged return."""
    made = batches(REWARDS[:4], with_kl=True)
    kls = [e.kl.double() * e.action_mask for e in made]
    maker(GradedExperienceMaker, estimator, None, KL).compute_advantages_and_returns(made)
    base = group_norm(REWARDS[:4]) if estimator == "group_norm" else REWARDS[:4]
    for experience, kl in zip(made, kls, strict=True):
        for row, i in enumerate(experience.index):
            expected = base[i] - KL * kl[row].sum().item()
            assert experience.info["return"][row].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 5, 700])
def test_sums_of_rewards_from_each_token_on_are_upstream_s_bit_for_bit(tokens, dtype):
    rewards = torch.randn(3, tokens, generator=torch.Generator().manual_seed(tokens)).to(dtype)
    theirs = maker(RemoteExperienceMaker, "group_norm").get_cumulative_returns(rewards.clone(), None, 1.0)
    mine = sums_from_each_token(rewards)
    assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)


# ── Weights ──


def weighed(experiences, weights: dict[int, list[float]], kl_coef=KL, negative=None) -> list[Experience]:
    """Return the experiences of the credit experience maker for a step whose rule gave these weights."""
    ours = maker(CreditExperienceMaker, "group_norm", None, kl_coef)
    ours._step = Step()
    for start in range(0, len(weights), SIZE):
        members = tuple(range(start, start + SIZE))
        made = {"weights": tuple(torch.tensor(weights[i]) for i in members)}
        if negative:
            made["negative_weights"] = tuple(torch.tensor(negative[i]) for i in members)
        ours._step.groups.append(GroupCredit(members, (0.0,) * SIZE, (True,) * SIZE, {}, 0.0, **made))
    return ours.compute_advantages_and_returns(experiences)


@pytest.mark.parametrize("scored", [True, False])
def test_correctness_and_the_rule_s_rewards_follow_the_score_before_any_shaping(scored):
    ours = maker(CreditExperienceMaker, "group_norm")
    ours.args.credit = SimpleNamespace(outcome=OutcomeConfig())
    ours._schedule, ours.training_step = SimpleNamespace(owners=[0]), 3
    ours._step = Step(samples=batches([0.9, 0.2, -1.0, 0.5], failed=(2,)))
    first, second = ours._step.samples
    if scored:
        first.scores, second.scores = torch.tensor([0.25, 0.75, 1.0]), torch.tensor([0.0])
    requests = ours._credit_requests()
    expected = (False, True, None, False) if scored else (True, False, None, True)
    assert [request.correct for request in requests] == [expected[:3], expected[3:]]
    values = [0.25, 0.75, math.nan, 0.0] if scored else [0.9, 0.2, math.nan, 0.5]
    assert [value for request in requests for value in request.rewards] == pytest.approx(values, nan_ok=True)


def gae(values, rewards, gamma, lambd):
    """Generalized advantage estimation of one row without gaps, float64, by its definition."""
    deltas = [
        r + gamma * after - v for r, v, after in zip(rewards, values, [*values[1:], 0.0][: len(values)], strict=True)
    ]
    return [
        sum((gamma * lambd) ** (later - t) * deltas[later] for later in range(t, len(deltas)))
        for t in range(len(deltas))
    ]


@pytest.mark.parametrize(("gamma", "lambd"), [(1.0, 1.0), (1.0, 0.5), (0.9, 0.95), (0.99, 0.0)])
def test_gae_runs_over_the_policys_own_tokens(gamma, lambd):
    """Rows with a tool's output, with padding on both sides, and without a gap, where upstream's result is the same."""
    draw = torch.Generator().manual_seed(0)
    mask = torch.tensor([[1, 1, 0, 0, 1, 1, 0], [0, 1, 1, 1, 1, 0, 0], [1, 0, 1, 0, 1, 0, 1], [0] * 7])
    values, rewards = torch.randn(4, 7, generator=draw), torch.randn(4, 7, generator=draw) * mask
    ours = maker(GradedExperienceMaker, "gae")
    advantages, returns = ours.get_advantages_and_returns(values, rewards, mask, gamma, lambd)
    for row, keep in enumerate(mask.bool()):
        expected = gae(values[row, keep].tolist(), rewards[row, keep].tolist(), gamma, lambd)
        assert advantages[row, keep].tolist() == pytest.approx(expected, abs=1e-6)
        assert returns[row, keep].tolist() == pytest.approx(
            [a + v for a, v in zip(expected, values[row, keep].tolist(), strict=True)], abs=1e-6
        )
    assert not advantages[~mask.bool()].any() and not returns[~mask.bool()].any()
    upstream = RemoteExperienceMaker.get_advantages_and_returns(ours, values, rewards, mask, gamma, lambd)
    solid = mask[1].bool()
    assert all(torch.equal(a[1, solid], b[1, solid]) for a, b in zip((advantages, returns), upstream, strict=True))
    assert lambd == 1.0 or not torch.allclose(advantages[2], upstream[0][2] * mask[2])


def test_a_named_reward_decides_correctness_in_place_of_the_score():
    """Accuracy of weight 1 beside a format reward of 0.5: the scores are all at least 0.5, the accuracies are not."""
    ours = maker(CreditExperienceMaker, "group_norm")
    ours.args.credit = SimpleNamespace(outcome=OutcomeConfig(correct_reward="accuracy"))
    ours._schedule, ours.training_step = SimpleNamespace(owners=[0]), 3
    ours._step = Step(samples=batches([1.5, 0.5, 0.5, 1.5], failed=(2,)))
    for samples, values in zip(ours._step.samples, ([1.0, 0.0, 0.4], [1.0]), strict=True):
        samples.info["accuracy"] = torch.tensor(values)
    requests = ours._credit_requests()
    assert [request.correct for request in requests] == [(True, False, None), (True,)]
    assert requests[0].rewards[:2] == (1.5, 0.5)
    del ours._step.samples[1].info["accuracy"]
    with pytest.raises(RefusedError, match=r"--credit\.correct_reward accuracy: the extra_logs .* have none"):
        ours._credit_requests()


def drawn(experiences, seed: int) -> dict[int, list[float]]:
    rng = random.Random(seed)
    lengths = {i: int(e.action_mask[row].sum()) for e in experiences for row, i in enumerate(e.index)}
    return {i: [rng.uniform(0, 3) for _ in range(lengths[i])] for i in sorted(lengths)}


@pytest.mark.parametrize("negative", [False, True])
def test_weights_multiply_the_outcome_s_advantage_and_not_the_kl_to_go(negative):
    """A_t = omega_t A_i - beta sum over u >= t of kl_u, in float64 and written out."""
    made = batches(REWARDS, with_kl=True, failed=(5,))
    weights, others = drawn(made, 1), drawn(made, 2) if negative else None
    kl = {i: e.kl[row, m].double().tolist() for e in made for row, (i, m) in enumerate(_rows(e))}
    got = advantages_of(weighed(made, weights, negative=others))
    base = [*group_norm(REWARDS[:4]), *group_norm([1.0, 0.0, 0.5])]
    base.insert(5, None)  # its reward failed
    for i, row in enumerate(got):
        if base[i] is None:
            assert row == [0.0] * len(row)
            continue
        given = others if negative and base[i] < 0 else weights
        expected = [given[i][t] * base[i] - KL * math.fsum(kl[i][t:]) for t in range(len(row))]
        assert row == pytest.approx(expected, rel=1e-5, abs=1e-6)


def _rows(experience):
    return zip(experience.index, experience.action_mask.bool(), strict=True)


@pytest.mark.parametrize("kl_coef", [0.0, KL])
def test_weights_of_1_give_grpo_bit_for_bit(kl_coef):
    made = batches(REWARDS, with_kl=True)
    ones = {i: [1.0] * len(row) for i, row in drawn(made, 0).items()}
    got = weighed(made, ones, kl_coef)
    plain = maker(GradedExperienceMaker, "group_norm", None, kl_coef)
    same = plain.compute_advantages_and_returns(batches(REWARDS, with_kl=True))
    assert advantages_of(got) == advantages_of(same)


def learner() -> Learner:
    parts = dict.fromkeys(("strategy", "args", "tokenizer", "actor_model_group", "critic_model_group", "kl_ctl"))
    return Learner(SimpleNamespace(**parts), SimpleNamespace(handles=[]), None)


def test_the_mean_reward_shown_is_of_the_rewards_that_did_not_fail():
    made = batches([1.0, 0.0, 1.0, 5.0], failed=(3,))
    for experience in made:
        experience.response_length = experience.action_mask.sum(1)
        experience.truncated = torch.zeros(len(experience.index))
        experience.info["reward"] = experience.rewards
    stats = learner()._compute_rollout_stats(made)
    assert stats["rollout/reward_mean"] == pytest.approx(2 / 3)
    assert stats["rollout/reward_std"] == pytest.approx(math.sqrt((1 / 9 + 4 / 9 + 1 / 9) / 2))


# ── Rollouts without a token, and steps without a rollout ──


def test_a_rollout_in_which_the_policy_wrote_nothing_counts_in_its_group_and_breaks_no_metric(monkeypatch):
    lengths = [3, 0, 4, 5]
    made = batches([1.0, 0.0, 1.0, 0.0], lengths=lengths)
    for experience in made:  # as upstream's pass leaves it: a mean over no token
        experience.info |= {
            "kl": (experience.kl * experience.action_mask).sum(1) / experience.action_mask.sum(1),
            "logprobs_diff": experience.action_mask.sum(1) / experience.action_mask.sum(1),
        }
    monkeypatch.setattr(RemoteExperienceMaker, "make_experience", lambda self, samples: samples)
    ours = maker(GradedExperienceMaker, "group_norm")
    ours.broken = {}
    made = ours.make_experience(made)
    assert not ours.broken
    for name in ("kl", "logprobs_diff"):
        assert torch.cat([e.info[name] for e in made]).isfinite().all(), name
    got = advantages_of(ours.compute_advantages_and_returns(made))
    assert got[1] == []
    for i, value in enumerate(group_norm([1.0, 0.0, 1.0, 0.0])):
        assert got[i] == pytest.approx([value] * lengths[i], rel=1e-5)
    assert torch.cat([e.info["return"] for e in made]).isfinite().all()


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"token_level_loss": False},
        {"policy_loss_type": "gspo", "token_level_loss": False},
        *(
            {"is_correction_level": level, "is_correction_gating": gating}
            for level in ("token", "seq")
            for gating in ("ratio", "tv")
        ),
    ],
    ids=str,
)
def test_a_rollout_in_which_the_policy_wrote_nothing_has_no_gradient_and_spoils_none(how):
    """A mean over its tokens is 0 / 0; the gradient of the others is the one that they have without it."""
    generator = torch.Generator().manual_seed(3)
    mask = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    now, old, sampled, advantages = (torch.randn(mask.shape, generator=generator) / 10 for _ in range(4))
    loss_of = PolicyLoss(is_correction_threshold=[0.0, 2.0], **how)

    def gradient(rows: list[int]) -> torch.Tensor:
        policy = now.clone().requires_grad_()
        whole = {"batch_num_tokens": 6.0, "global_batch_size": 2.0}
        loss, *_ = loss_of(policy[rows], old[rows], advantages[rows], mask[rows], sampled[rows], **whole)
        loss.backward()
        return policy.grad

    assert gradient([0, 2]).abs().sum() > 0
    assert torch.equal(gradient([0, 1, 2]), gradient([0, 2])) and not gradient([1]).any()


def test_a_step_of_which_no_rollout_is_finite_says_so(monkeypatch):
    ours = maker(GradedExperienceMaker, "group_norm")
    samples = [Experience(rewards=torch.ones(1), info={FAILED: torch.zeros(1)}) for _ in range(SIZE)]

    def all_broken(self, rollouts):
        made = batches([1.0, 0.0, 1.0, 0.0])
        for experience in made:
            experience.advantages = torch.full(experience.action_mask.shape, math.nan)
        return made

    monkeypatch.setattr(RemoteExperienceMaker, "make_experience_batch", all_broken)
    with pytest.raises(NothingToTrainError, match="no rollout is finite"):
        ours.make_experience_batch(samples)
