"""Comparing what a function returned, as the message in which it left the jail (`jail.inside.plain`)."""

from __future__ import annotations

FLOAT_TOLERANCE = 1e-6
_INT_DIGITS = 1 << 20  # hexadecimal


def same_value(wanted: object, message: object) -> bool:
    """Whether an encoded value (see `plain`) equals what a dataset gives as JSON.

    A tuple or an array equals a list, floats are equal to 1e-6 relative (absolute below 1). The message is hostile: it
    is walked along `wanted`, never decoded, so that it cannot make this process build or hash what it likes.
    """
    tag, body = message[:2] if isinstance(message, list) and len(message) > 1 else (None, message)
    if tag == "array":
        return same_value(wanted, body)
    if isinstance(wanted, (list, tuple)):
        lists = tag in ("list", "tuple", "deque") and isinstance(body, list) and len(body) == len(wanted)
        return lists and all(map(same_value, wanted, body))
    if isinstance(wanted, dict):
        if tag not in ("dict", "ordered", "counter", "default") or not isinstance(body, list):
            return False
        # JSON's keys are text; an int's hash could be chosen to collide, a text's cannot.
        pairs = {str(pair[0]): pair[1] for pair in body if isinstance(pair, list) and len(pair) == 2}
        same = len(body) == len(wanted) and wanted.keys() == pairs.keys()
        return same and all(same_value(value, pairs[key]) for key, value in wanted.items())
    if tag == "int" and isinstance(body, str) and len(body) <= _INT_DIGITS and isinstance(wanted, (int, float)):
        try:
            body = int(body, 16)
        except ValueError:
            return False
    elif tag is not None:
        return False
    if isinstance(wanted, float) and isinstance(body, (int, float)):
        try:
            return wanted == body or abs(wanted - body) <= FLOAT_TOLERANCE * max(1.0, abs(wanted))
        except OverflowError:
            return False
    return not isinstance(body, (list, dict)) and wanted == body
