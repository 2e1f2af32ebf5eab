"""Credit rules by name: a built-in rule, or a user's `my_package.my_module:MyRule/KNOB=VALUE/...`."""

import importlib
import inspect
import sys
from collections.abc import Mapping
from typing import get_type_hints

from openrlhf_shear.config import RULES, CreditSpec
from openrlhf_shear.config.names import RuleName, wrong_type
from openrlhf_shear.config.refusal import did_you_mean
from openrlhf_shear.config.rules import Traits
from openrlhf_shear.credit.rule import LAB_ALONE, NEEDS, UPDATE_NEEDS, CreditRule, UpdateRule

Rule = CreditRule | UpdateRule


def traits_of(rule: Rule) -> Traits:
    if isinstance(rule, UpdateRule):
        return Traits("update", frozenset(rule.needs))
    return Traits("advantages" if rule.makes_advantages else "weights", frozenset(rule.needs))


def load_rule(spec: CreditSpec, setting: str = "algo.advantage.estimator") -> Rule:
    """Return a new instance of the rule that `spec` names; messages begin with the `setting` that a user gave it by.

    Raises:
        ValueError: as in `make_rule`, or the rule needs something that a run cannot give.
    """
    where, name = f"{setting} {spec.estimator}", spec.name
    rule = make_rule(name, spec.config, where)
    known = UPDATE_NEEDS if isinstance(rule, UpdateRule) else [need for need in NEEDS if need not in LAB_ALONE]
    if only := traits_of(rule).lab_alone:
        raise ValueError(f"{where}: it needs {', '.join(only)}, which only the credit lab gives; use shear-lab")
    if unknown := set(rule.needs) - set(known):
        raise ValueError(
            f"{where}: it needs {', '.join(sorted(unknown))}, which is not available; use some of {', '.join(known)}"
        )
    if isinstance(rule, CreditRule):
        rule.search = spec.search
        if window := getattr(spec.config, "window", None):
            spec.search.require_fits(window)
    return rule


def make_rule(name: RuleName, config: object | None, where: str) -> Rule:
    """Return a new rule by its name, without a check of its needs. Messages begin with `where`.

    Raises:
        ValueError: its module cannot be imported, the name is not a rule's, or its constructor refuses the knobs.
    """
    if name.built_in is None:
        return _outside(name.outside, name.arguments(), where)
    rule_class = _class(name.built_in.where)
    return rule_class(config) if name.built_in.config else rule_class()


def _outside(place: str, arguments: Mapping[str, object], where: str) -> Rule:
    module_name, _, class_name = place.partition(":")
    remedy = f"use one of {', '.join(RULES)}, or my_package.my_module:MyRule with a CreditRule in it"
    try:
        rule_class = _class(place)
    except Exception as error:
        raise ValueError(
            f"{where}: {module_name} cannot be imported ({type(error).__name__}: {error}); it must be on the Python "
            f"path of every process, e.g. in the folder it starts in, or in the working directory of ray job submit"
        ) from error
    if not (isinstance(rule_class, type) and issubclass(rule_class, Rule)):
        got = f"a {type(rule_class).__name__} that is no CreditRule"
        if rule_class is None:
            got = f"nothing of that name{did_you_mean(class_name, vars(sys.modules[module_name]))}"
        raise ValueError(f"{where}: {module_name} has {got}; {remedy}")
    if isinstance(needs := rule_class.needs, str):
        raise ValueError(f"{where}: {class_name}.needs must be a set of names: got {needs!r}; use {{{needs!r}}}")
    if problem := _wrong_argument(rule_class, arguments):
        raise ValueError(f"{where}: {class_name} {problem}")
    try:
        return rule_class(**arguments)
    except Exception as error:
        text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        raise ValueError(f"{where}: {class_name}({text}) raised {type(error).__name__}: {error}; {remedy}") from error


def _wrong_argument(rule_class: type, arguments: Mapping[str, object]) -> str:
    """Return why a class does not take the arguments: an unknown name, or a type other than its hint; else ""."""
    try:
        parameters = inspect.signature(rule_class).parameters
        hints = get_type_hints(rule_class.__init__)
    except (TypeError, ValueError, NameError):
        return ""
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return ""
    for name, value in arguments.items():
        if name not in parameters:
            known = f"has {', '.join(parameters)}" if parameters else "has no knobs"
            return f"has no knob {name}{did_you_mean(name, parameters)}; it {known}"
        if problem := wrong_type(hints.get(name), value):
            return f"needs {problem} for {name}: got {value!r}"
    return ""


def _class(place: str) -> object:
    """Return the object that `module:Name` names; None if the module has no such name."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name, None)
