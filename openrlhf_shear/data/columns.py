"""Values of a row's columns, as the flags name them: a column, a field in it, or a label of several columns."""

import ast
import json
from collections.abc import Mapping
from typing import Any

HALF_PAIR = "holds half of a surrogate pair, which is no character"


def value_at(row: Mapping[str, Any], key: str) -> Any:
    """Return the value of a column, or of a field in it, which a key with dots names; None if there is none.

    >>> value_at({"reward_model": {"ground_truth": "34"}}, "reward_model.ground_truth"), value_at({"a.b": 1}, "a.b")
    ('34', 1)
    """
    if key in row:
        return row[key]
    value: Any = row
    for part in key.split("."):
        value = object_of(value)
        value = None if value is None else value.get(part)
    return value


def object_of(value: object) -> dict | None:
    """Return an object, given as a dict or as a JSON or Python text; None for any other value."""
    if isinstance(value, str):
        for read in (json.loads, ast.literal_eval):
            try:
                value = read(value)
                break
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
    return value if isinstance(value, dict) else None


def label_at(row: Mapping[str, Any], key: str) -> Any:
    """Return a row's label: the value of a column (`value_at`), or an object of several columns, separated by commas.

    A field of the object has the last part of its column's key as its name. None if all fields are None.

    >>> label_at({"answer": "7", "level": 2}, "answer,level"), label_at({"a,b": 1}, "a,b")
    ({'answer': '7', 'level': 2}, 1)
    """
    if key in row or "," not in key:
        return value_at(row, key)
    label = {name: value_at(row, column) for name, column in label_columns(key).items()}
    return None if all(value is None for value in label.values()) else label


def label_columns(key: str) -> dict[str, str]:
    """Return the key of each column that a label is made of, by the name of its field.

    Raises ValueError: a name is missing, or stands there twice.
    """
    columns = [column.strip() for column in key.split(",")]
    names = [column.rpartition(".")[2] for column in columns]
    if len(columns) > 1 and (not all(names) or len({*names}) < len(names)):
        raise ValueError(f"the label's columns must have different names: got {key!r}; use e.g. answer,difficulty")
    return dict(zip(names, columns, strict=True))


def no_label(value: object) -> str | None:
    """Say why a value of a label's column is no label: it is null, NaN, or cannot be sent to a reward unchanged."""
    if value is None or value != value:
        return "is null"
    return _unusable(value)


def _unusable(value: object) -> str | None:
    """Say what JSON and UTF-8 do not have of a value, or of a part of it (a date, bytes, a decimal number)."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return HALF_PAIR
        return None
    if value is None or isinstance(value, bool | int | float):
        return None
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return next(filter(None, map(_unusable, value)), None)
    return f"holds a {type(value).__name__}, which is no text, number, list or object: the column must hold texts"
