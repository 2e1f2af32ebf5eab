"""Reading a response, and comparing what its program printed or returned. Untrusted text is never compiled here."""

import decimal
import re
import sys

_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[ \t]*([^\s`]*)[^\n]*$", re.MULTILINE)
_PYTHON = {"python", "python3", "py", "py3", "pypy3"}
_IMPORT = re.compile(r"(?:^|[;:])[ \t]*(?:from[ \t]+(\w+)|import[ \t]+([^\n#;]+))", re.MULTILINE)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?", re.ASCII)
TOLERANCE = decimal.Decimal("1e-6")  # relative, and absolute below 1; only where the expected number has decimals
_INT_DIGITS = 1 << 20  # hexadecimal


def code_block(response: str) -> str | None:
    """The last closed or open fenced block marked as Python, else the last one of any kind; None without a fence.

    >>> code_block("So:\\n```python\\nprint(1)\\n```\\nDone.")
    'print(1)\\n'
    """
    blocks: list[tuple[bool, str]] = []
    opened: re.Match[str] | None = None

    def close(end: int) -> None:
        blocks.append((opened[1].lower() in _PYTHON, response[opened.end() + 1 : end]))

    for fence in _FENCE.finditer(response):
        if opened is None or fence[1]:  # a language opens a block, whatever was open
            opened = fence
        else:
            close(fence.start())
            opened = None
    if opened is not None:
        close(len(response))
    marked = [text for python, text in blocks if python]
    return (marked or [text for _, text in blocks] or [None])[-1]


def defines(code: str, name: str) -> bool:
    """Whether code gives a top-level name a meaning."""
    name = re.escape(name)
    meaning = rf"^(?:(?:async[ \t]+)?def[ \t]+{name}\b|class[ \t]+{name}\b|{name}[ \t]*(?:=(?!=)|:))"
    return re.search(meaning, code, re.MULTILINE) is not None


def needs_packages(code: str) -> bool:
    """Whether code imports more than the standard library."""
    for origin, several in _IMPORT.findall(code):
        for name in [origin] if origin else several.split(","):
            if name.strip() and re.split(r"[\s.]", name.strip())[0] not in sys.stdlib_module_names | {""}:
                return True
    return False


def same_output(expected: str, got: str) -> bool:
    """Equal line by line without space at the ends, else token by token, numbers as decimals."""
    if len(got) > 8 * len(expected) + 4096:
        return False
    wanted, said = ([line.strip() for line in text.strip().splitlines()] for text in (expected, got))
    if len(wanted) != len(said):
        return False
    tokens = [(one.split(), other.split()) for one, other in zip(wanted, said, strict=True) if one != other]
    return all(len(one) == len(other) and all(map(_same_token, one, other)) for one, other in tokens)


def _same_token(wanted: str, said: str) -> bool:
    if wanted == said:
        return True
    if not _NUMBER.fullmatch(wanted) or not _NUMBER.fullmatch(said):
        return False
    with decimal.localcontext() as context:
        context.traps[decimal.Overflow] = context.traps[decimal.InvalidOperation] = False
        one, other = decimal.Decimal(wanted), decimal.Decimal(said)
        exact = not set(".eE") & set(wanted)
        return one == other if exact else abs(one - other) <= TOLERANCE * max(1, abs(one))


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
            return wanted == body or abs(wanted - body) <= float(TOLERANCE) * max(1.0, abs(wanted))
        except OverflowError:
            return False
    return not isinstance(body, (list, dict)) and wanted == body
