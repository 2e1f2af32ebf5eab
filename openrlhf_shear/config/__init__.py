"""Every knob of the credit rules: frozen dataclasses, no torch, and ValueError for a value out of its range."""

from openrlhf_shear.config.rules import RULES, BuiltIn, EntropyAdvConfig, PureConfig
from openrlhf_shear.config.shear import ShearConfig
from openrlhf_shear.config.spec import CreditSpec, PrmConfig, SearchConfig

__all__ = [
    "RULES",
    "BuiltIn",
    "CreditSpec",
    "EntropyAdvConfig",
    "PrmConfig",
    "PureConfig",
    "SearchConfig",
    "ShearConfig",
]
