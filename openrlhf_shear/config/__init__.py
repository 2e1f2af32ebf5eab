"""Every knob of the credit rules: frozen dataclasses with units and ranges, and no torch import.

The command line (`--shear.*`, ...), its `--help` and the Python API are made from these. What a rule computes (`rules`,
with the table of the built-in rules), how the span search runs (`search`), the process reward model (`prm`) and what a
run makes of them all (`spec`) are apart.
"""

from openrlhf_shear.config.prm import PrmConfig
from openrlhf_shear.config.rules import RULES, BuiltIn, EntropyAdvConfig, PureConfig, ShearConfig
from openrlhf_shear.config.search import SearchConfig
from openrlhf_shear.config.spec import CreditSpec

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
