"""Token credit: rules that weigh the tokens of a group of rollouts. `rule` defines them; `shear` implements SHEAR."""

from openrlhf_shear.credit.rule import Credit, CreditRule, RolloutGroup, UpdateRule
from openrlhf_shear.credit.shear import ShearResult, shear_weights

__all__ = ["Credit", "CreditRule", "RolloutGroup", "ShearResult", "UpdateRule", "shear_weights"]
