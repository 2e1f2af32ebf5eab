"""Give surprising tokens more of the credit; a rule from outside the package, to copy.

    python -m openrlhf_shear.cli.train_ppo_ray --algo.advantage.estimator examples.rules.surprise_rule:SurpriseRule ...

w_t = 1 + s_t - mean(s), with s_t = min(-log p(token t), 5) / 5. Weights are between 0 and 2; their mean is 1 in every
rollout.
"""

from openrlhf_shear.credit import Credit, CreditRule, RolloutGroup

MOST = 5.0  # nats


class SurpriseRule(CreditRule):
    """Weighs tokens by how unlikely the policy found them."""

    name = "surprise"
    needs = frozenset({"log_probs"})

    def credit(self, group: RolloutGroup) -> Credit:
        surprise = [(-log_probs).clamp(0, MOST) / MOST for log_probs in group.log_probs]
        weights = [1 + s - s.mean() if len(s) else s for s in surprise]
        known = [s.mean().item() for s in surprise if len(s)]
        return Credit(weights, metrics={"surprise": sum(known) / max(len(known), 1)})
