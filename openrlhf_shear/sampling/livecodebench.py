"""LiveCodeBench's rows: which of them are asked, and their tests.

A pickle calls whatever it can import, and a few kilobytes of zlib may grow to any size. So nothing is imported here,
and nothing larger than `MAX_BYTES` is unpacked.
"""

import base64
import io
import json
import pickle
import zlib
from collections.abc import Mapping
from datetime import date
from typing import Any

from openrlhf_shear.data.files import DataError
from openrlhf_shear.data.sources import tests

SINCE, BEFORE = date(2025, 2, 1), date(2025, 6, 1)  # the paper's "February to May 2025"
MAX_BYTES = 512 << 20  # of one row's private tests, unpacked


def in_window(row: Mapping[str, Any]) -> bool:
    """Return whether the contest was in SINCE <= date < BEFORE; DataError where `contest_date` is no ISO date."""
    text = str(row["contest_date"])
    try:
        return SINCE <= date.fromisoformat(text[:10]) < BEFORE
    except ValueError as error:
        raise DataError(f"contest_date must be a date: got {text[:40]!r}; use e.g. 2025-02-01T00:00:00") from error


def label(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return a row's public and private tests as (JSON that `grade_code` reads, "stdin" or "function").

        {"inputs": ["1 2"], "outputs": ["3"]}
        {"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}      from the input "1\\n2" and the output "3"

    Raises:
        DataError: the tests cannot be unpacked or read, or are of another kind than in `metadata`.
        Dropped: "bad_tests" where `grade_code` would refuse them.
    """
    name = _read(row, "metadata", dict).get("func_name")
    rows = [*_read(row, "public_test_cases", list), *_private(row)]
    cases = [_case(case, "functional" if name else "stdin") for case in rows]
    if not name:
        return tests({"inputs": [text for text, _ in cases], "outputs": [wanted for _, wanted in cases]})
    inputs = [[_json("a test", line) for line in text.split("\n") if line.strip()] for text, _ in cases]
    return tests({"inputs": inputs, "outputs": [_result(wanted) for _, wanted in cases], "fn_name": name})


def _case(case: Any, kind: str) -> tuple[str, str]:
    """Return input and output of a test."""
    match case:
        case {"testtype": k, "input": str(text), "output": str(wanted)} if k == kind:
            return text, wanted
    raise DataError(f"a test must be a {kind} one with texts for input and output: got {str(case)[:200]!r}")


def _result(text: str) -> Any:
    """Return a function's result, guarded: `tests_of` unwraps one list, and must not take 5 for "5" or for [5]."""
    result = _json("a test", text)
    guarded = isinstance(result, str) or (isinstance(result, list) and len(result) == 1)
    return [result] if guarded else result


def _private(row: Mapping[str, Any]) -> list:
    packed = row["private_test_cases"]
    if isinstance(packed, str) and not packed.lstrip().startswith("["):
        packed = unpacked(packed)
    return _read({"private_test_cases": packed}, "private_test_cases", list)


def unpacked(packed: str, limit: int = MAX_BYTES) -> str:
    """Return the text whose pickle is in base64 of zlib.

    Raises DataError where the input is something else, holds anything but a text, or is larger than `limit` bytes.
    """
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(base64.b64decode(packed, validate=True), limit + 1)
    except (ValueError, zlib.error) as error:
        raise DataError(f"private_test_cases must be JSON, or base64 of zlib of a pickle: {error}") from error
    if len(data) > limit or not inflate.eof:
        cause = f"they grow beyond {limit} bytes" if len(data) > limit else "they end early"
        raise DataError(f"private_test_cases cannot be unpacked: {cause}; use the data set's own file")
    try:
        text = _NoImports(io.BytesIO(data)).load()
    except DataError:
        raise
    except Exception as error:  # unpickling broken data may raise nearly anything
        raise DataError(f"private_test_cases hold a broken pickle: {type(error).__name__}: {error}") from error
    if not isinstance(text, str):
        raise DataError(f"private_test_cases must hold a text: got {type(text).__name__}; use the data set's own file")
    return text


class _NoImports(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise DataError(
            f"private_test_cases hold a pickle that asks for {module}.{name}, which could run anything; "
            "use the data set's own file"
        )


def _read(row: Mapping[str, Any], key: str, kind: type) -> Any:
    value = _json(key, row[key]) if isinstance(row[key], str) else row[key]
    if not isinstance(value, kind):
        raise DataError(f"{key} must be a JSON {kind.__name__}: got {str(value)[:80]!r}")
    return value


def _json(what: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{what} must be JSON: {error}; got {text[:80]!r}") from error
