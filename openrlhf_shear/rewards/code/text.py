"""Finds the code in a response, and compares what its program printed or returned. No untrusted text is compiled."""

import decimal
import math
import sys
from collections.abc import Callable

import regex as re

_SPACE = "[ \t\u00a0\u202f\u3000]"
_INDENT = rf"^(?P<indent>{_SPACE}*(?:(?:[-*+]|[0-9]+[.)]){_SPACE}+)?)"  # an item of a list may hold the block
_FENCE = rf"{_INDENT}(?:`{{3,}}|~~~)[ \t]*(?P<language>[^\s`(]*)(?P<rest>[^\n]*)$"
_ENDS_LINE = r"`{3,}(?P<language>[\w+#.-]*)[ \t\r]*$"  # a fence after text on its line, and nothing follows
# A triple-quoted text, a text on a line, a comment. Each may lack its end, so that no character is read twice.
_TEXTS = "|".join(
    (
        *(rf"{quote}{{3}}(?:[^{quote}\\]++|\\.|{quote}(?!{quote}{quote}))*+(?:{quote}{{3}}|\\?\Z)" for quote in "\"'"),
        *(rf"{quote}(?:[^{quote}\\\n]++|\\.)*+{quote}?" for quote in "\"'"),
        r"#[^\n]*",
    )
)
_FENCES = re.compile(_FENCE, re.MULTILINE)
_OPENS = re.compile(rf"{_FENCE}|^(?:(?!```)[^\n])++{_ENDS_LINE}", re.MULTILINE)
_IN_CODE = re.compile(rf"{_FENCE}|{_ENDS_LINE}|```(?P<language>)|(?P<text>{_TEXTS})", re.MULTILINE | re.DOTALL)
_TEXT = re.compile(_TEXTS, re.DOTALL)
_FIRST = re.compile(rf"^({_SPACE}*)[^\s#]", re.MULTILINE)  # line of code
_ODD = re.compile(rf"(?P<text>{_TEXTS})|(?P<space>[\u00a0\u2007\u202f\u3000])|[\ufeff\u200b\u2060]", re.DOTALL)
_PYTHON = re.compile(r"[{.]*(?:python|pypy|py)[\d.]*(?![\w-])", re.IGNORECASE)  # language of a fence
_ENDS_COMMENT = re.compile(r"(?<=[^#\s`][ \t]*)```(?P<language>)[ \t\r]*$")
_THOUGHT = re.compile(r"</think>(?!['\"\\])")
_SPAN = re.compile(r"```(?:(?:python|py)3?[ \t]+)?([^\n`]+)```")  # a block on a line
_QUOTED = re.compile(rf"^{_SPACE}*>[ ]?(?!>)", re.MULTILINE)
_BESIDE = re.compile(  # code on the line of its fence
    r"\s*(?:(?:def|class|import|from|for|while|if|with|print)\b|\w*\(|@"
    r"|[A-Za-z_]\w*(?: *, *\w+)* *= *(?:[A-Za-z_.]+\(|[0-9\[{(-]))"
)
_TAGGED = "(?:final_)?(?:answer|code|solution|program|python)"
_TAG = re.compile(rf"(?:^|[>\]])[ \t]*(?:<{_TAGGED}>|\[{_TAGGED}\])", re.MULTILINE | re.IGNORECASE)
_END_TAG = re.compile(rf"</{_TAGGED}>|\[/{_TAGGED}\]", re.IGNORECASE)
_READS = re.compile(
    r"=\s*input\b|\binput\s*[(,)]|\bfileinput\b|\b(?:open|read|fdopen)\(\s*0|\bstdin\b(?!\s*=\s*(?:io\.)?StringIO)"
)
_IMPORT = re.compile(r"(?:^|[;:])[ \t]*(?:from[ \t]+(\w+)|import[ \t]+([^\n#;]+))", re.MULTILINE)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?", re.ASCII)
_ZEROS = re.compile(r"[+-]?0[0-9]")
_INFINITE = re.compile(r"[+-]?inf(?:inity)?", re.IGNORECASE)
TOLERANCE = decimal.Decimal("1e-6")  # relative, and absolute below 1; only if the expected number has decimals
_INT_DIGITS = 1 << 20  # hexadecimal
_MOST_BLOCKS = 64  # of a response that are looked into
_READINGS = 16  # of a response on average: an endless text is read again for each block that it begins in


def code_block(response: str, is_tested: Callable[[str], bool] = lambda block: True) -> str | None:
    """Return the last fenced block that is tested, else the last with any code; None without a block.

    A block marked as Python comes before an unmarked one, and that before one of another language. A fence may follow
    text on its line, and may close a block at the end of its last line. Without a fence, tags such as `<answer>` hold
    the block. What follows `</think>` counts if it has a block.

    A block need not be closed. A fence inside a text of the program, such as its docstring, is part of the program. If
    a response has so many texts without an end that this search takes too long, any fence ends a block. An indented
    block loses its fence's indent.

    Args:
        is_tested: whether a block has what the tests run; an example of its use may follow it.

    >>> code_block("So: ```python\\nprint(1)\\n```\\nDone.")
    'print(1)\\n'
    """
    response = response.removeprefix("\ufeff")
    if re.search(rf"^{_SPACE}*>{_SPACE}*```", response, re.MULTILINE):
        response = _QUOTED.sub("", response)
    *thoughts, answer = _THOUGHT.split(response)
    if thoughts and (block := code_block(answer, is_tested)) is not None:
        return block
    if thoughts and _BESIDE.match(answer):
        return answer
    blocks = _blocks("</think>".join((*thoughts, answer)))[-_MOST_BLOCKS:]
    first = _OPENS.search(response)
    if first and not first["language"] and _BESIDE.match(response) and not any(is_tested(text) for _, text in blocks):
        blocks = [("", response[: first.start()])]  # in a block that the prompt opened
    for is_wanted in (is_tested, _has_code) if len(blocks) > 1 else ():
        for wanted in ("python", ""):
            if found := [block for language, block in blocks if language == wanted and is_wanted(block)]:
                return found[-1]
    return blocks[-1][1] if blocks else None


def _blocks(response: str) -> list[tuple[str, str]]:
    """Return the language and the text of each block; every kind of Python is "python"."""
    blocks: list[tuple[str, str]] = []
    opened, left = _OPENS.search(response), _READINGS * len(response)  # characters to read for ends of blocks
    while opened:
        at = opened.end()
        language = "python" if _PYTHON.match(opened["language"]) else opened["language"]
        beside = ("" if language == "python" else language) + (opened["rest"] or "")
        beside = beside.strip() if _BESIDE.match(beside) else ""
        if beside.endswith("```"):
            blocks.append(("python", beside.rstrip("`")))
            opened = _OPENS.search(response, at)
            continue
        end, seen = _closing(response, at, left)
        left -= seen - at
        text = response[at + 1 : end.start() if end else len(response)]
        text, language = (f"{beside}\n{text}", "python") if beside else (text, language)
        blocks.append((language, _outdented(text, opened["indent"] or "")))
        # A language opens a block, even inside another.
        opens = end is None or re.match("[A-Za-z]", end["language"])
        opened = end if opens else _OPENS.search(response, end.end())
    if not any(text.strip() for _, text in blocks) and (spans := [*filter(_BESIDE.match, _SPAN.findall(response))]):
        return [("python", spans[-1])]
    tags = [] if blocks else [*_TAG.finditer(response)]
    return [("", _END_TAG.split(response[tags[-1].end() :])[0])] if tags else blocks


def _closing(response: str, start: int, left: int) -> tuple[re.Match[str] | None, int]:
    """Return the fence that ends the block at `start`, and how far the response was read to find it.

    After `left` characters, the next fence counts, wherever it is.
    """
    at, in_comment = start, None
    while at - start <= left and (found := _IN_CODE.search(response, at)):
        at = found.end()
        if found["text"] is None:
            return found, at
        if found["text"].startswith("#"):
            in_comment = in_comment or _ENDS_COMMENT.search(response, found.start(), at)
            continue
        inside = [*_FENCES.finditer(response, found.start(), at)]
        endless = at == len(response) or any(_PYTHON.match(fence["language"]) for fence in inside[1:])
        if inside and endless and not inside[0]["language"]:
            return inside[0], at  # quotes without an end, or with an end only in a later block
    if at - start <= left:
        return in_comment, len(response)
    found = _FENCES.search(response, at)
    return found, found.end() if found else len(response)


def _outdented(text: str, indent: str) -> str:
    first = _FIRST.search(text)
    most = min(len(indent), len(first[1])) if first else 0
    most = len(first[1]) if first and indent.strip() else most  # an item's text is indented by any number of spaces
    return re.sub(rf"^{_SPACE}{{1,{most}}}", "", text, flags=re.MULTILINE) if most else text


def _has_code(block: str) -> bool:
    """Return whether a block is more than comments and texts, and no session with Python's prompt."""
    return not block.lstrip().startswith(">>>") and bool(_TEXT.sub("", block).strip())


def reads_input(block: str) -> bool:
    """Return whether a block reads stdin."""
    return "/dev/stdin" in block or _READS.search(_TEXT.sub("", block)) is not None


def readable(code: str) -> str:
    """Return code without the marks that a tokenizer or a web page left, and with plain spaces for odd spaces.

    Texts and comments stay unchanged.
    """

    def mended(odd: re.Match[str]) -> str:
        return odd["text"] or (" " if odd["space"] else "")

    return code if code.isascii() else _ODD.sub(mended, code)


def defines(code: str, name: str) -> bool:
    """Return whether code defines a top-level name."""
    name = re.escape(name)
    meaning = rf"^(?:(?:async[ \t]+)?def[ \t]+{name}\b|class[ \t]+{name}\b|{name}[ \t]*(?:=(?!=)|:))"
    return re.search(meaning, code, re.MULTILINE) is not None


def top_level_names(code: str) -> list[str]:
    """Return the names of code's top-level functions and classes."""
    return re.findall(r"^(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", code, re.MULTILINE)


def needs_packages(code: str) -> bool:
    """Return whether code imports more than the standard library."""
    for origin, several in _IMPORT.findall(code):
        for name in [origin] if origin else several.split(","):
            if name.strip() and re.split(r"[\s.]", name.strip())[0] not in sys.stdlib_module_names | {""}:
                return True
    return False


def same_output(expected: str, got: str) -> bool:
    """Return whether two outputs are equal by line without space at the ends, else by token, numbers as decimals."""
    if len(got) > 8 * len(expected) + 4096:
        return False
    wanted, output = ([line.strip() for line in text.strip().splitlines()] for text in (expected, got))
    if len(wanted) != len(output):
        return False
    pairs = [(line.split(), other.split()) for line, other in zip(wanted, output, strict=True) if line != other]
    return all(len(tokens) == len(others) and all(map(_same_token, tokens, others)) for tokens, others in pairs)


def _same_token(wanted: str, output: str) -> bool:
    if wanted == output:
        return True
    if endless := _endless(wanted):
        return endless == _endless(output)
    if _ZEROS.match(wanted):  # 007: a name, not a number
        return False
    if not _NUMBER.fullmatch(wanted) or not _NUMBER.fullmatch(output):
        return False
    with decimal.localcontext() as context:
        context.traps[decimal.Overflow] = context.traps[decimal.InvalidOperation] = False
        expected, got = decimal.Decimal(wanted), decimal.Decimal(output)
        exact = not set(".eE") & set(wanted)
        return expected == got if exact else abs(expected - got) <= TOLERANCE * max(1, abs(expected))


def _endless(token: str) -> str:
    """Return the sign of an infinity; "" for any other token."""
    return (token[0] if token[0] in "+-" else "+") if _INFINITE.fullmatch(token) else ""


def same_value(wanted: object, message: object) -> bool:
    """Return whether an encoded value (see `plain`) equals a value that a dataset gives as JSON.

    A tuple or an array equals a list. Floats are equal to 1e-6 relative (absolute below 1). The message is hostile. It
    is walked along `wanted` and never decoded, so that it cannot make this process build or hash what it likes.
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
        # JSON's keys are text. The hash of an int could be chosen to collide; the hash of a text cannot.
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
    if isinstance(wanted, float) and math.isfinite(wanted) and isinstance(body, (int, float)):
        try:
            return wanted == body or abs(wanted - body) <= float(TOLERANCE) * max(1.0, abs(wanted))
        except OverflowError:
            return False
    return not isinstance(body, (list, dict)) and wanted == body
