"""Names for `--rules`: a rule, its knobs, and perhaps a control in place of the rule.

- uniform: a rule by its name in training, or an oracle
- shear/window=4/stride=1: a rule with its knobs
- shear/window=4/stride=1/matched: the rule's control (`lab.credit`), or several, as in /on_incorrect/matched
- my_module:MyRule/power=2: a rule of yours, whose knobs are the arguments of its class
"""

import ast
import hashlib
import inspect
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from openrlhf_shear.config import RULES, CreditSpec
from openrlhf_shear.config.foreign import meant
from openrlhf_shear.config.names import NoKnobError, RuleName, is_outside, names_file, parse_rule, split
from openrlhf_shear.config.shear import ShearConfig
from openrlhf_shear.config.spec import credit_spec
from openrlhf_shear.config.syntax import canonical
from openrlhf_shear.credit.registry import Rule, make_rule
from openrlhf_shear.credit.rule import NEEDS, UPDATE_NEEDS, CreditRule, UpdateRule
from openrlhf_shear.lab.credit import CONTROLS, ORACLES, PERMUTED
from openrlhf_shear.lab.settings import LabSettings

NAMES = (*(rule.name for rule in RULES.values() if "prm_scores" not in rule.traits.needs), *ORACLES)
_SHARED = ("window", "stride", "epsilon_rel")  # of SHEAR, which the lab's settings supply unless a name sets them
_TRUTH = re.compile(rb"openrlhf_shear\W+(import\W+)?(tasks|lab)\b")
_GIVEN = {*NEEDS, *UPDATE_NEEDS, "first_errors"} - {"prm_scores"}


@dataclass(frozen=True)
class Variant:
    """A row of the lab's tables: a rule with its knobs and control."""

    name: str  # as on the command line
    estimator: str  # the rule's name
    knobs: tuple[tuple[str, str], ...]  # (name, value as text), as the variant's name sets them
    control: str | None  # one or more of `CONTROLS`, joined by "/"; None for the rule itself

    def rule(self, settings: LabSettings) -> Rule:
        """Make the rule anew; ValueError for an unknown rule or knob, or for a need that the lab cannot meet."""
        where = f"--rules {self.name}"
        if self.estimator in ORACLES:
            rule = self._oracle(where)
        else:
            rule = make_rule(self._rule_name, self._spec(settings).config, where)
            if not isinstance(rule, UpdateRule):
                rule.search = self._spec(settings).search
        unknown = set(rule.needs) - _GIVEN
        if unknown:
            raise ValueError(f"{where}: it needs {', '.join(sorted(unknown))}, which the lab has not got")
        if self.control and isinstance(rule, UpdateRule):
            raise ValueError(
                f"{where}: {self.estimator} acts in the update, on mini-batches, where there is no whole "
                f"step to control for; use it without /{self.control}"
            )
        if PERMUTED in (self.control or "").split("/") and not isinstance(rule, UpdateRule) and rule.makes_advantages:
            raise ValueError(
                f"{where}: {self.estimator} makes its own advantages from the outcomes, so that other outcomes change "
                f"their signs too; use another control"
            )
        return rule

    def identity(self, settings: LabSettings) -> dict:
        """Return all that decides the variant's numbers; runs are stored by it. How the search runs decides nothing.

        Only knobs that differ from their defaults are in it, so a new knob does not change it. A rule of yours is
        identified by its knobs as written, and by the code of the files of its class and of the class's bases, without
        docstrings and comments.
        """
        identity = {"estimator": self.estimator, "control": self.control}
        if is_outside(self.estimator):
            code = repr([canonical(ast.parse(text)) for text in self._files(settings)])
            return identity | dict(self.knobs) | {"source": hashlib.sha256(code.encode()).hexdigest()}
        if self.estimator in ORACLES:
            return identity | _changed_arguments(ORACLES[self.estimator], self._rule_name.arguments())
        config = self._spec(settings).config
        return identity | (config.changed() if config else {})

    def reads_truth(self, settings: LabSettings) -> bool:
        """Return whether the rule asks for the first errors, or its files name the code that knows them."""
        texts = self._files(settings) if is_outside(self.estimator) else ()
        return "first_errors" in self.rule(settings).needs or any(_TRUTH.search(text) for text in texts)

    def _files(self, settings: LabSettings) -> list[bytes]:
        """Return the files of the rule's class and of its bases outside this package and the standard library."""
        classes = type(self.rule(settings)).__mro__
        outside = [c for c in classes if c.__module__.partition(".")[0] not in ("openrlhf_shear", "abc", "builtins")]
        return [Path(file).read_bytes() for file in dict.fromkeys(inspect.getsourcefile(c) for c in outside)]

    def _oracle(self, where: str) -> CreditRule:
        oracle = ORACLES[self.estimator]
        unknown = set(dict(self.knobs)) - set(inspect.signature(oracle).parameters)
        if unknown:
            raise ValueError(f"{where}: {self.estimator} has no knob {', '.join(sorted(unknown))}")
        try:
            return oracle(**self._rule_name.arguments())
        except (ValueError, TypeError) as error:
            raise ValueError(f"{where}: {error}") from error

    @cached_property
    def _rule_name(self) -> RuleName:
        return RuleName(self.name, self.estimator, dict(self.knobs))

    def _spec(self, settings: LabSettings) -> CreditSpec:
        entry = self._rule_name.built_in
        shared = _SHARED if entry and entry.config and issubclass(entry.config, ShearConfig) else ()
        try:
            values = {name: getattr(settings, name) for name in shared}
            return credit_spec(self._rule_name, values)
        except ValueError as error:
            raise ValueError(f"--rules {self.name}: {error}") from error


def parse_rules(text: str) -> list[Variant]:
    """Return the variants of a comma-separated list.

    >>> [variant.knobs for variant in parse_rules("uniform,shear/window=4")]
    [(), (('window', '4'),)]

    Raises:
        ValueError: a part names no variant, or is there twice.
    """
    variants = [_parse(part.strip()) for part in split(text, ",") if part.strip()]
    names = [variant.name for variant in variants]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not variants:
        raise ValueError(f"--rules {text!r}: {f'{twice[0]} is there twice' if twice else 'names no rule'}")
    return variants


def _parse(text: str) -> Variant:
    estimator, *parts = split(text, "/")
    if estimator not in NAMES and not is_outside(estimator) and not names_file(text):
        needs = "; the lab has no process reward model" if estimator in RULES else meant(estimator, NAMES)
        raise ValueError(
            f"--rules {text!r}: no rule is called {estimator!r}{needs}; use {', '.join(NAMES)} or my_module:MyRule"
        )
    controls = []
    while parts and parts[-1] in CONTROLS:
        controls.insert(0, parts.pop())
    try:  # an oracle's knobs are checked when it is made
        name = parse_rule("/".join(["uniform" if estimator in ORACLES else estimator, *parts]))
    except ValueError as error:
        controls_too = f", nor, at the end, one of {', '.join(CONTROLS)}" if isinstance(error, NoKnobError) else ""
        raise ValueError(f"--rules {text!r}: {error}{controls_too}") from error
    return Variant(text, estimator, tuple(name.knobs.items()), "/".join(controls) or None)


def _changed_arguments(rule: type, arguments: dict[str, object]) -> dict[str, object]:
    """Return the arguments that differ from the rule's defaults; integers become floats where the default is one."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(rule).parameters.items()}
    read = {name: float(value) if isinstance(defaults[name], float) else value for name, value in arguments.items()}
    return {name: value for name, value in read.items() if value != defaults[name]}
