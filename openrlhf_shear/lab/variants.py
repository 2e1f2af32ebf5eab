"""What `--rules` names: a rule, its knobs, and perhaps a control in its place.

uniform                        a rule by its name in training, or an oracle
shear/window=4/stride=1        with knobs of its own
shear/window=4/stride=1/matched    its control (`controls`)
my_module:MyRule/power=2       a rule of yours; its knobs are the arguments of its class
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import get_type_hints

from openrlhf_shear.config import (
    PRM_RULES,
    RULES,
    CreditSpec,
    EntropyAdvConfig,
    ErrorOddsConfig,
    ShearConfig,
    is_outside,
)
from openrlhf_shear.credit.registry import load_outside, load_rule
from openrlhf_shear.credit.rule import NEEDS, CreditRule, UpdateRule
from openrlhf_shear.lab.controls import CONTROLS
from openrlhf_shear.lab.oracles import ORACLES
from openrlhf_shear.lab.settings import LabSettings

NAMES = (*(name for name in RULES if name not in PRM_RULES), *ORACLES)
_CONFIGS = {"shear": ShearConfig, "error_odds": ErrorOddsConfig, "entropy_adv": EntropyAdvConfig}
_WITHOUT_EFFECT = ("backend", "max_cost_bytes")  # knobs that change no result
_NOT_HERE = ("correct_threshold",)  # the task says what is correct


@dataclass(frozen=True)
class Variant:
    """One row of the lab's tables.

    Attributes:
        name: as on the command line.
        estimator: the rule.
        knobs: what the name sets, by name, as text.
        control: one of `CONTROLS`, or None for the rule itself.
    """

    name: str
    estimator: str
    knobs: tuple[tuple[str, str], ...]
    control: str | None

    def rule(self, settings: LabSettings) -> CreditRule | UpdateRule:
        """The rule, made anew.

        Raises:
            ValueError: there is no such rule or knob, or it needs what the lab has not got.
        """
        given = dict(self.knobs)
        if is_outside(self.estimator):
            arguments = {name: _literal(text) for name, text in given.items()}
            rule = load_outside(self.estimator, f"--rules {self.name}", arguments)
        elif self.estimator in _CONFIGS:
            config = self._config(settings)
            rule = load_rule(CreditSpec(self.estimator, **{self.estimator: config}))
        elif given:
            raise ValueError(f"--rules {self.name}: {self.estimator} has no knobs: got {', '.join(given)}")
        elif self.estimator in ORACLES:
            rule = ORACLES[self.estimator]()
        else:
            rule = load_rule(CreditSpec(self.estimator))
        needs = set(getattr(rule, "needs", ()))
        unknown = needs - ({*NEEDS, "first_errors"} - {"prm_scores"})
        if unknown:
            raise ValueError(f"--rules {self.name}: it needs {', '.join(sorted(unknown))}, which the lab has not got")
        if self.control and isinstance(rule, UpdateRule):
            raise ValueError(
                f"--rules {self.name}: {self.estimator} acts in the update, on mini-batches, where there is no whole "
                f"step to control for; use it without /{self.control}"
            )
        return rule

    def identity(self, settings: LabSettings) -> dict:
        """What decides its numbers: runs are kept by this. A rule of yours is known by the content of the files of its
        class and of the classes it derives from.
        """
        found = {"estimator": self.estimator, "control": self.control}
        if self.estimator in _CONFIGS:
            config = asdict(self._config(settings))
            return found | {name: value for name, value in config.items() if name not in _WITHOUT_EFFECT}
        found |= dict(self.knobs)
        if is_outside(self.estimator):
            found["source"] = _source(type(self.rule(settings)))
        return found

    def _config(self, settings: LabSettings) -> ShearConfig | ErrorOddsConfig | EntropyAdvConfig:
        kind = _CONFIGS[self.estimator]
        shared = ("window", "stride", "epsilon_rel") if kind is ShearConfig else ()
        values = {name: getattr(settings, name) for name in shared}
        hints, known = get_type_hints(kind), [each.name for each in fields(kind) if each.name not in _NOT_HERE]
        for name, text in self.knobs:
            if name not in known:
                raise ValueError(f"--rules {self.name}: no knob {name}; {self.estimator} has {', '.join(known)}")
            value = _literal(text)
            if hints[name] is int and type(value) is not int:
                raise ValueError(f"--rules {self.name}: {name} must be a whole number: got {text!r}")
            values[name] = float(value) if hints[name] is float and isinstance(value, int) else value
        try:
            return kind(**values)
        except TypeError as error:
            raise ValueError(f"--rules {self.name}: {error}") from error


def parse_rules(text: str) -> list[Variant]:
    """The variants of a comma-separated list.

    >>> [variant.knobs for variant in parse_rules("uniform,shear/window=4")]
    [(), (('window', '4'),)]

    Raises:
        ValueError: a part is none, or is there twice.
    """
    variants = [_parse(part.strip()) for part in text.split(",") if part.strip()]
    names = [variant.name for variant in variants]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not variants:
        raise ValueError(f"--rules {text!r}: {f'{twice[0]} is there twice' if twice else 'names no rule'}")
    return variants


def _parse(text: str) -> Variant:
    estimator, *parts = text.split("/")
    if estimator not in NAMES and not is_outside(estimator):
        needs = "; the lab has no process reward model" if estimator in PRM_RULES else ""
        raise ValueError(
            f"--rules {text!r}: no rule is called {estimator!r}{needs}; use {', '.join(NAMES)} or my_module:MyRule"
        )
    control = parts.pop() if parts and parts[-1] in CONTROLS else None
    knobs = [tuple(part.split("=", 1)) for part in parts]
    wrong = [part for part, found in zip(parts, knobs, strict=True) if len(found) != 2 or not found[0].isidentifier()]
    if wrong:
        raise ValueError(
            f"--rules {text!r}: {wrong[0]!r} is no KNOB=VALUE, nor, at the end, one of {', '.join(CONTROLS)}"
        )
    names = [name for name, _ in knobs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"--rules {text!r}: the knob {twice} is there twice")
    return Variant(text, estimator, tuple(knobs), control)


def _source(rule: type) -> str:
    """A digest of the files of its class and of the bases that are not this package's, nor Python's."""
    outside = [c for c in rule.__mro__ if c.__module__.partition(".")[0] not in ("openrlhf_shear", "abc", "builtins")]
    files = dict.fromkeys(inspect.getsourcefile(c) for c in outside)
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()


def _literal(text: str):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
