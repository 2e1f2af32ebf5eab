"""Credit rules through the whole stack: two training steps, their metrics, and the advantages they make."""

import pytest
import torch


@pytest.mark.parametrize(
    ("estimator", "metrics"),
    [
        ("entropy_adv", {"entropy": (1e-4, 4.0), "bonus": (1e-6, 1.0), "capped": (0.0, 1.0)}),
        # A rule from outside the package, found from the folder the job is started in.
        ("examples.rules.surprise_rule:SurpriseRule", {"weight_min": (0.0, 0.999), "surprise": (1e-4, 1.0)}),
    ],
)
def test_two_steps_with_each_rule(policy, train, estimator, metrics):
    reward = policy.parents[1] / "rewards" / "arithmetic.py"
    _, scalars = train("--reward.remote_url", reward, "--algo.advantage.estimator", estimator)
    name = {"examples.rules.surprise_rule:SurpriseRule": "surprise"}.get(estimator, estimator)
    assert scalars["train/ledger/trained"] == [32.0, 64.0]
    for metric, (low, high) in metrics.items():
        values = scalars[f"train/{name}/{metric}"]
        assert len(values) == 2 and all(low <= value <= high for value in values), (metric, values)
    if estimator != "entropy_adv":  # which acts in the update
        assert all(0 < value < 1 for value in scalars[f"train/{name}/credit_share"])


def advantages(experiences) -> dict[int, torch.Tensor]:
    rows = [(i, e.advantages[row][e.action_mask[row].bool()]) for e in experiences for row, i in enumerate(e.index)]
    return dict(rows)


def test_uniform_is_grpo_bit_for_bit(actor_group, arguments, maker, rollouts):
    group, strategy = actor_group(arguments("--algo.advantage.estimator", "uniform"))
    expected = advantages(maker(group, strategy, upstream=True).make_experience_batch(rollouts(3)))
    got = advantages(maker(group, strategy).make_experience_batch(rollouts(3)))
    assert got.keys() == expected.keys() and all(torch.equal(got[i], expected[i]) for i in expected)


def test_entropy_adv_changes_the_update_and_nothing_before_it(cluster, actor_group, arguments, maker, rollouts):
    """With alpha 0 the update is GRPO's own, to the last bit; with the paper's it is another."""

    def after_update(alpha: str) -> torch.Tensor:
        words = ("--algo.advantage.estimator", "entropy_adv", "--entropy_adv.alpha", alpha, "--actor.adam.lr", "1e-3")
        return updated(*words)

    def updated(*words) -> torch.Tensor:
        group, strategy = actor_group(arguments(*words))
        experiences = maker(group, strategy, upstream=True).make_experience_batch(rollouts(4))
        cluster.get(group.async_run_method_batch(method_name="append", experience=experiences))
        torch.manual_seed(0)
        cluster.get(group.async_run_method("fit", kl_ctl=0.0))
        samples = rollouts(1)
        batch = {
            name: [getattr(sample, name) for sample in samples]
            for name in ("sequences", "action_mask", "attention_mask")
        }
        return torch.cat([out[0] for out in cluster.get(group.async_run_method_batch("forward", **batch))[0]])

    grpo = updated("--algo.advantage.estimator", "group_norm", "--actor.adam.lr", "1e-3")
    assert torch.equal(after_update("0"), grpo)
    assert (after_update("0.4") - grpo).abs().max() > 1e-3
