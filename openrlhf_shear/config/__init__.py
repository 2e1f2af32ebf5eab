"""Every knob of the credit rules: frozen dataclasses with units and ranges, and no torch import.

The command line (`--shear.*`, ...), its `--help` and the Python API are made from these. What a rule computes is in
`rules`, with the table of the built-in ones; what a run makes of it, and how it runs, in `spec`. All raise ValueError
for a value out of its range; the message names the knob, the value, and what to use.
"""

from openrlhf_shear.config.rules import RULES, BuiltIn, EntropyAdvConfig, PureConfig, ShearConfig
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
