"""Names of rules, in training and in the lab: RULE, or RULE/KNOB=VALUE/...

    shear/window=4/stride=1                a built-in rule (`rules.RULES`) and some of its knobs
    my_package.my_module:MyRule/power=2    a rule from outside the package; its knobs are the arguments of its class
    my_module:MyRule/path='/data/x'        text in quotes may hold slashes and commas

A value is what Python reads; any other text stays text.
"""

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args, get_type_hints

from openrlhf_shear.config.foreign import meant
from openrlhf_shear.config.rules import RULES, BuiltIn

_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_FILE = re.compile(r"(?P<folder>(?:[^:]*/)?)(?P<module>\w+)\.py(?P<rest>(?::[^/]*)?(?:/.*)?)")


class NoKnobError(ValueError):
    """A part behind a rule's name is no KNOB=VALUE."""


@dataclass(frozen=True)
class RuleName:
    """A rule and its knobs as written."""

    text: str  # the whole text
    rule: str  # the part before the first slash
    knobs: Mapping[str, str] = field(default_factory=dict)  # by name, as text

    @property
    def built_in(self) -> BuiltIn | None:
        """Entry in the table of built-in rules; None for a rule from outside."""
        return RULES.get(self.rule)

    @property
    def outside(self) -> str | None:
        """Place of a rule from outside, `my_package.my_module:MyRule`; None for a built-in rule."""
        return None if self.built_in else self.rule

    def arguments(self) -> dict[str, object]:
        """Return the knobs as Python values (numbers, True, ...), and as text where they spell no such value."""
        return {name: literal(text) for name, text in self.knobs.items()}


def parse_rule(text: str) -> RuleName:
    """Parse the name of a rule and its knobs.

    >>> parse_rule("my_rules:Mine/power=2/path='/data/x'").knobs
    {'power': '2', 'path': "'/data/x'"}

    Raises ValueError: the text names no rule, or a part after the name is no KNOB=VALUE.
    """
    if file := names_file(text):
        folder, module, rest = file.group("folder", "module", "rest")
        place = f", with {folder} on PYTHONPATH" if folder else ""
        raise ValueError(
            f"a rule is named by its module, not by its file: got {text!r}; use {module}{rest or ':ITS_CLASS'}{place}"
        )
    rule, *parts = split(text, "/")
    if not is_rule(rule):
        hint = meant(rule, list(RULES))
        raise ValueError(f"no rule is called {rule!r}{hint}; use {', '.join(RULES)} or my_package.my_module:MyRule")
    knobs: dict[str, str] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or not name.isidentifier():
            before = next(reversed(knobs), None)
            hint = f"; a value with slashes needs quotes: {before}='/...'" if before else ""
            raise NoKnobError(f"{part!r} is no KNOB=VALUE{hint}")
        if name in knobs:
            raise ValueError(f"the knob {name} is there twice")
        knobs[name] = value
    return RuleName(text, rule, knobs)


def split(text: str, separator: str) -> list[str]:
    """Return the parts between `separator`, a character, where it stands outside of quotes.

    >>> split("m:Rule/path='/data/x'/power=2", "/")
    ['m:Rule', "path='/data/x'", 'power=2']
    """
    parts, part = [], ""
    for piece in re.findall(f"{_QUOTED}|.", text, re.DOTALL):
        if piece == separator:
            parts.append(part)
            part = ""
        else:
            part += piece
    return [*parts, part]


def is_rule(estimator: str) -> bool:
    """Say whether an estimator is a credit rule of this fork rather than OpenRLHF's; knobs after its name are ignored.

    >>> is_rule("shear"), is_rule("my_package.my_module:MyRule/power=2"), is_rule("group_norm")
    (True, True, False)
    """
    rule = estimator.partition("/")[0]
    return rule in RULES or is_outside(rule)


def names_file(text: str) -> re.Match[str] | None:
    """Match a rule that is named by its file, `rules/my_rule.py:MyRule`, which Python cannot import."""
    return _FILE.fullmatch(text)


def is_outside(rule: str) -> bool:
    """Say whether `rule` names a rule from outside the package, `my_package.my_module:MyRule`."""
    module, colon, name = rule.partition(":")
    parts = module.split(".")
    return bool(colon) and name.isidentifier() and parts[-1] != "py" and all(part.isidentifier() for part in parts)


def titled(rules: Iterable[str]) -> list[str]:
    """Return the rules' titles for pages: rules from outside lose their modules, unless two titles would be the same.

    >>> titled(["my_rule:MyRule/power=2", "shear/window=4", "mine:Rule", "yours:Rule"])
    ['MyRule, power 2', 'shear/window=4', 'mine:Rule', 'yours:Rule']
    """
    rules = list(rules)
    short = {rule: _title(rule) for rule in rules}
    titles = list(short.values())
    return [short[rule] if titles.count(short[rule]) == 1 else rule for rule in rules]


def _title(rule: str) -> str:
    place, *knobs = split(rule, "/")
    if not is_outside(place):
        return rule
    return ", ".join([place.partition(":")[2], *(knob.replace("=", " ", 1) for knob in knobs)])


def configured(kind: type, knobs: Mapping[str, str], values: Mapping[str, object]) -> Any:
    """Make an object of the class of knobs `kind`; a field's value is that of `knobs`, else `values`, else its default.

    Raises ValueError: a value has another type than its field, or is out of range.
    """
    hints, arguments = get_type_hints(kind), dict(values)
    for name in (each.name for each in fields(kind) if each.name in knobs):
        value = literal(knobs[name])
        if problem := wrong_type(hints[name], value):
            raise ValueError(f"{name} must be {problem}: got {knobs[name]!r}")
        arguments[name] = float(value) if hints[name] is float and type(value) is int else value
    try:
        return kind(**arguments)
    except TypeError as error:
        raise ValueError(str(error)) from error


_KINDS = {int: "a whole number", float: "a number", bool: "True or False"}


def wrong_type(hint: object, value: object) -> str:
    """Return what a value should be by its type hint; "" if it is, or if the hint is of another kind.

    >>> wrong_type(int, 4.5), wrong_type(float, 4), wrong_type(float | None, "abc"), wrong_type(list, 1)
    ('a whole number', '', 'a number, or None', '')
    """
    kinds = set(get_args(hint) or (hint,))
    if not kinds <= {*_KINDS, type(None)}:
        return ""
    if type(value) in kinds or (type(value) is int and float in kinds):
        return ""
    wanted = " or ".join(_KINDS[kind] for kind in _KINDS if kind in kinds)
    return f"{wanted}, or None" if type(None) in kinds else wanted


def literal(text: str) -> object:
    """Return the Python value that a text spells, else the text.

    >>> literal("2"), literal("0.5"), literal("cosine")
    (2, 0.5, 'cosine')
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
