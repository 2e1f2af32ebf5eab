"""A flag of a knob of `config`: its type, choices, default and help are the knob's."""

from __future__ import annotations

import argparse
import types
from dataclasses import MISSING, Field
from typing import get_args, get_origin, get_type_hints


def add_knob(group: argparse._ArgumentGroup, config: type, knob: Field, flag: str) -> None:
    """
    Args:
        config: the dataclass that the knob is a field of.
        flag: e.g. "--shear.window".
    """
    assert knob.default is not MISSING, f"{config.__name__}.{knob.name} has no default"
    default = "unset" if knob.default is None else knob.default
    about = f"{knob.metadata['help']} (default: {default})".replace("%", "%%")
    hint = get_type_hints(config)[knob.name]
    if hint is bool:
        group.add_argument(flag, action="store_true", default=knob.default, help=about)
    else:
        choices = knob.metadata["choices"]
        group.add_argument(flag, type=_value_type(hint), default=knob.default, choices=choices, help=about)


def _value_type(hint: type) -> type:
    """`int`, `float` or `str` of a knob's annotation, which may be `<type> | None`."""
    if get_origin(hint) is types.UnionType:
        (hint,) = (member for member in get_args(hint) if member is not types.NoneType)
    assert hint in (int, float, str), f"no flag can be made of {hint}"
    return hint
