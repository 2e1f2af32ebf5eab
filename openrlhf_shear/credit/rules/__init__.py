"""Built-in rules, one file each; `config.rules` has their table."""

from typing import Any

from openrlhf_shear.config import RULES


class WithKnobs:
    """Part of a rule with knobs: `config` is of the class that `config.rules` has for its name; None: the defaults."""

    name: str

    def __init__(self, config: Any = None):
        self.config = config or RULES[self.name].config()
