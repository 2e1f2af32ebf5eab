"""From a name on the command line to a rule: the package's own, or `my_package.my_module:MyRule`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from openrlhf_shear.config import RULES, CreditSpec
from openrlhf_shear.credit.entropy_adv import EntropyAdvRule
from openrlhf_shear.credit.error_odds import ErrorOddsRule
from openrlhf_shear.credit.prm_reshape import PrmReshapeRule
from openrlhf_shear.credit.pure import PureRule
from openrlhf_shear.credit.rule import NEEDS, CreditRule, UpdateRule
from openrlhf_shear.credit.shear import ShearRule
from openrlhf_shear.credit.uniform import UniformRule


def load_rule(spec: CreditSpec) -> CreditRule | UpdateRule:
    """The rule that `spec` names, made anew.

    Raises:
        ValueError: its module cannot be imported, it is neither a `CreditRule` nor an `UpdateRule`, or it cannot be
            made without arguments.
    """
    if spec.estimator == "shear":
        return ShearRule(spec.shear)
    if spec.estimator == "uniform":
        return UniformRule()
    if spec.estimator == "error_odds":
        return ErrorOddsRule(spec.error_odds, spec.shear)
    if spec.estimator == "entropy_adv":
        return EntropyAdvRule(spec.entropy_adv)
    if spec.estimator == "prm_reshape":
        return PrmReshapeRule()
    if spec.estimator == "pure":
        return PureRule(spec.pure)
    where = f"algo.advantage.estimator {spec.estimator}"
    rule = load_outside(spec.estimator, where, {})
    unknown = set(getattr(rule, "needs", ())) - set(NEEDS)
    if unknown:
        raise ValueError(
            f"{where}: it needs {', '.join(sorted(unknown))}, which nobody gives; use some of {', '.join(NEEDS)}"
        )
    return rule


def load_outside(estimator: str, where: str, arguments: Mapping[str, object]) -> CreditRule | UpdateRule:
    """The rule `my_package.my_module:MyRule`, made with these arguments.

    Args:
        where: what asked for it; messages begin with it.

    Raises:
        ValueError: its module cannot be imported, it is neither a `CreditRule` nor an `UpdateRule`, or it cannot be
            made with these arguments.
    """
    module_name, _, class_name = estimator.partition(":")
    remedy = f"use one of {', '.join(RULES)}, or my_package.my_module:MyRule with a CreditRule in it"
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ValueError(
            f"{where}: {module_name} cannot be imported ({type(error).__name__}: {error}); it must be on the Python "
            f"path of every process, e.g. in the folder it starts in, or in the working dir of ray job submit"
        ) from error
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, CreditRule | UpdateRule)):
        got = "nothing of that name" if found is None else f"a {type(found).__name__} that is no CreditRule"
        raise ValueError(f"{where}: {module_name} has {got}; {remedy}")
    try:
        return found(**arguments)
    except Exception as error:
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        raise ValueError(f"{where}: {class_name}({given}) raised {type(error).__name__}: {error}; {remedy}") from error


def needs_prm(spec: CreditSpec | None) -> bool:
    """Whether a process reward model must be there."""
    return spec is not None and "prm_scores" in getattr(load_rule(spec), "needs", ())
