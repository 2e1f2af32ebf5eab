"""From a response to its final answer, and from an answer to tidy text: LaTeX, words quoted. Nothing is evaluated."""

import re

MAX_ANSWER = 2000

_BOX = re.compile(r"\\f?box(?:ed)?\s*+(?![A-Za-z])")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_SAID = re.compile(r"(?i)\banswer(?: is|\s*:)\s*:?")
_TAIL = 4000
_NOT_SAID = "*_ \t"

_UNICODE = str.maketrans(
    {
        **dict.fromkeys("\u2212\u2013\uff0d", "-"),
        **dict.fromkeys("\u00b7\u22c5", r"\cdot "),
        **dict.fromkeys("\u00a0\u2009\u202f", " "),
        **dict.fromkeys('\u200b"`', ""),
        **{"\u00d7": r"\times ", "\u00f7": r"\div ", "\u00b1": r"\pm ", "\u00b0": r"^\circ "},
        **{"\u03c0": r"\pi ", "\u221e": r"\infty ", "\u222a": r"\cup ", "\u2229": r"\cap ", "\u2208": r"\in "},
        **{"\u2264": r"\le ", "\u2265": r"\ge ", "\u2260": r"\ne ", "\u2248": r"\approx "},
    }
)
_ROOT = re.compile("\u221a\\s*+([0-9]++|[A-Za-z])")
_WORDS = re.compile(r"\\(?:text(?:bf|it|rm|up|sf|tt|normal)?|mbox|mathrm|operatorname)\s*+\{([^{}]*+)\}")
_FONT = re.compile(r"\\(?:mathbf|mathit|mathsf|mathnormal|boldsymbol|bm)\s*+\{([^{}]*+)\}")
_NO_FENCE = re.compile(r"\\(?:left|right)\s*+\.")
COMMAND = re.compile(r"\\([A-Za-z]++|.)", re.DOTALL)
_SPACES = (",", ";", ":", ">", " ", "\n", "\t", "quad", "qquad", "thinspace", "displaystyle", "textstyle", "limits")
_SILENT = ("!", "(", ")", "[", "]", "$", "left", "right", "degree", "rm", "bf", "nolimits", "hfill")
_SIZES = tuple(size + side for size in ("big", "Big", "bigg", "Bigg") for side in ("", "l", "r", "m"))
_RENAMED = {
    **dict.fromkeys(_SPACES, " "),
    **dict.fromkeys((*_SILENT, *_SIZES), ""),
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), r"\frac "),
    **dict.fromkeys(("dbinom", "tbinom"), r"\binom "),
    **dict.fromkeys(("leq", "leqslant"), r"\le "),
    **dict.fromkeys(("geq", "geqslant"), r"\ge "),
    **dict.fromkeys(("lvert", "rvert", "vert"), "|"),
    **{"neq": r"\ne ", "lt": "<", "gt": ">", "%": "%", "varnothing": r"\emptyset "},
    **{"lbrace": r"\{", "rbrace": r"\}", "lbrack": "[", "rbrack": "]"},
}
_LETTER_UNITS = "msghlLNJWVKCF"  # another letter in \\text{} or \\mathrm{} is a variable, a choice, e or i
_DEGREES = re.compile(r"\^\s*+(?:\\circ(?![A-Za-z])|\{\s*+\\circ\s*+\})")
_SHORT_FRAC = re.compile(r"\\frac\s*+(?:([0-9]|\\pi)|\{([^{}]*+)\})\s*+(?:([0-9])|\{([^{}]*+)\})")
_SHORT_SQRT = re.compile(r"\\sqrt\s*+([0-9])")
_BRACED_COMMA = re.compile(r"\{\s*+,\s*+\}")
_BLANK = re.compile(r"\s++")
_BLANK_TO_DROP = re.compile(r"(?<![0-9]) | (?![0-9])")
_BRACED_CHARACTER = re.compile(r"([_^])\{([0-9A-Za-z])\}")
_LETTERS = re.compile(r"[A-Za-z ]*+")


def final_answer(response: str) -> tuple[str | None, str | None]:
    r"""The answer that a response ends on, and why there is none: "no_answer" or "too_long".

    It is what the last `\boxed{...}` holds, even if that is empty or never closed. Without any box it is the rest of
    the line after the last `####`, or else after the last "answer is" or "answer:" (in the last 4000 characters).
    """
    at = max(response.rfind(r"\boxed"), response.rfind(r"\fbox"))
    text = _box_at(response, at) if at >= 0 else _said(response[-_TAIL:])
    if text is None or not text.strip():
        return None, "no_answer"
    if len(text) > MAX_ANSWER:
        return text[:MAX_ANSWER], "too_long"
    return text.strip(), None


def tidy(answer: str) -> str:
    r"""The tidy form of an answer or a gold.

    >>> tidy(r"$\left(3, \dfrac12\right)$.")
    '(3, \\frac{1}{2})'
    >>> tidy(r"12{,}345 \text{ cm}^2")
    '12,345 "cm" ^2'
    """
    text = _ROOT.sub(r"\\sqrt{\1}", answer).translate(_UNICODE)
    text = _WORDS.sub(_quoted, _FONT.sub(r" \1 ", text))
    # A command swallows the blanks after it, so a blank behind its new name changes nothing.
    text = COMMAND.sub(lambda match: _RENAMED.get(match[1], match[0]), _NO_FENCE.sub(" ", text))
    text = _DEGREES.sub(" ", _BRACED_COMMA.sub(",", text.replace("$", " ")))
    for _ in range(2):  # \frac\frac123 is nobody's answer: two passes do for a fraction within a fraction
        text = _SHORT_FRAC.sub(_full_frac, text)
    text = _SHORT_SQRT.sub(r"\\sqrt{\1}", text)
    text = _BLANK.sub(" ", text).strip().rstrip(".,;: ")
    if text.startswith("{") and _closing(text, 0) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def squeeze(text: str) -> str:
    """A tidy text for comparing: no blanks but between two digits, no quotes, words in lower case."""
    if len(text) > 1 and _LETTERS.fullmatch(text.replace('"', "")) and text != text.upper():  # AB is no word
        text = text.lower()
    text = _BLANK_TO_DROP.sub("", text.replace('"', ""))
    text = _BRACED_CHARACTER.sub(r"\1\2", text)
    if len(text) == 3 and text[0] == "(" and text[1].isalpha() and text[2] == ")":
        return text[1]  # (C) is the choice C
    return text


def _box_at(response: str, at: int) -> str | None:
    """What the box at this place holds; None if it is not closed. Longer than MAX_ANSWER is cut just beyond it."""
    text = response[at : at + MAX_ANSWER + 64]
    head = _BOX.match(text)
    if head is None:
        return None
    start = head.end()
    if not text.startswith("{", start):
        return re.split(r"[\s$.]", text[start:], maxsplit=1)[0]
    end = _closing(text, start)
    if end is None:
        return text[start:] if len(text) > MAX_ANSWER + 63 else None
    return text[start + 1 : end]


def _said(tail: str) -> str | None:
    hashes = tail.rfind("####")
    if hashes >= 0:
        return tail[hashes + 4 :].lstrip().partition("\n")[0]
    *_, said = [None, *_SAID.finditer(tail)]
    if said is None:
        return None
    line = tail[said.end() :].lstrip().partition("\n")[0].strip(_NOT_SAID)
    return re.split(r"\.(?:\s|$)", line, maxsplit=1)[0].strip(_NOT_SAID)


def _closing(text: str, start: int) -> int | None:
    """Where the brace opened at `start` is closed."""
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.start()
    return None


def _quoted(match: re.Match[str]) -> str:
    words = match[1].strip()
    plain = not words or any(c.isdigit() for c in words) or (len(words) == 1 and words not in _LETTER_UNITS)
    return f" {words} " if plain else f' "{words}" '


def _full_frac(match: re.Match[str]) -> str:
    top, bottom = (match[1] or match[2] or "", match[3] or match[4] or "")
    return rf"\frac{{{top.strip()}}}{{{bottom.strip()}}}"
