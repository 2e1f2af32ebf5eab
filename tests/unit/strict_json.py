"""Strict JSON: Python's reader accepts NaN and Infinity, which other readers refuse."""

import json


def strict(text):
    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)
