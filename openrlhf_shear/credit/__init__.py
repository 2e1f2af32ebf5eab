"""Token credit: from a group's hidden states and outcomes to token weights."""

from openrlhf_shear.credit.shear import ShearResult, shear_weights

__all__ = ["ShearResult", "shear_weights"]
