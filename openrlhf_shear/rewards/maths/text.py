"""From a response to its final answer, and from an answer to tidy text: LaTeX, words quoted. Nothing is evaluated."""

import unicodedata

import regex as re

from openrlhf_shear.rewards.verdict import Reason

MAX_ANSWER = 2000

_BOX = re.compile(r"\\f?box(?:ed)?\s*+(?![A-Za-z])")
_BETWEEN = re.compile(r"(?:[\s$,;]|\\[,;: ]|\\(?:quad|qquad|text\s*\{\s*(?:and|or)\s*\})|\\[()]|\b(?:and|or)\b)*+")
_MOST_BOXES = 16
_DISPLAY = re.compile(r"\\\[(.*?)\\\]|\$\$(.*?)\$\$", re.DOTALL)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_SAID = re.compile(r"(?i)\banswer(?: is|\s*:)\s*:?")
_TAIL = 4000
_NOT_SAID = "*_ \t"

_UNICODE = str.maketrans(
    {
        **dict.fromkeys("\u2212\u2013\uff0d", "-"),
        **dict.fromkeys("\u00b7\u22c5", r"\cdot "),
        **dict.fromkeys("\u00a0\u2009\u202f", " "),
        **dict.fromkeys('\u200b"`\u20ac\u00a3\u00a5', ""),
        **{"\u00d7": r"\times ", "\u00f7": r"\div ", "\u00b1": r"\pm ", "\u00b0": r"^\circ "},
        **{"\u03c0": r"\pi ", "\u221e": r"\infty ", "\u222a": r"\cup ", "\u2229": r"\cap ", "\u2208": r"\in "},
        **{"\u2264": r"\le ", "\u2265": r"\ge ", "\u2260": r"\ne ", "\u2248": r"\approx "},
    }
)
_RAISED = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u207e\u207f]+")
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_COLOR = re.compile(r"\\(?:text)?color\s*+\{[^{}]*+\}")
_OVER = re.compile(r"\{([^{}\\]*+(?:\\(?!over(?![A-Za-z]))[^{}\\]*+)*+)\\over(?![A-Za-z])([^{}]*+)\}")
_NOT_EQUAL = re.compile(r"(?<![0-9)\]}!\s])(\s*+)!=")
_ROWS = re.compile(
    r"(?:\\\{\s*+)?\\begin\s*+\{(cases|array|aligned)\}(?:\s*+\{[lcr|]*+\})?((?:(?!\\(?:begin|end)\b).)*+)\\end\s*+\{\1\}",
    re.DOTALL,
)
_ASIDE = re.compile(r"(?<=[0-9}%])\s*+(?:(?<=\s)|(?=\())\(\s*+(?:\"([A-Za-z ]{2,}+)\"|([A-Za-z ]{3,}+))\s*+\)$")
_ROOT = re.compile("\u221a\\s*+([0-9]++|[A-Za-z])")
_WORDS = re.compile(r"\\(?:text(?:bf|it|rm|up|sf|tt|normal)?|mbox|mathrm|operatorname)\s*+\{([^{}]*+)\}")
_FONT = re.compile(r"\\(?:mathbf|mathit|mathsf|mathnormal|boldsymbol|bm)\s*+\{([^{}]*+)\}")
_THIN_COMMA = re.compile(r",\s*+\\!\s*+")
_NO_FENCE = re.compile(r"\\(?:left|right)\s*+\.")
COMMAND = re.compile(r"\\([A-Za-z]++|.)", re.DOTALL)
_WORDS_FOR = {**dict.fromkeys(("lor", "vee"), ' "or" '), **dict.fromkeys(("land", "wedge"), ' "and" ')}
_SPACES = (",", ";", ":", ">", " ", "\n", "\t", "quad", "qquad", "thinspace", "displaystyle", "textstyle", "limits")
_SILENT = ("!", "(", ")", "[", "]", "$", "left", "right", "degree", "rm", "bf", "nolimits", "hfill")
_SIZES = tuple(size + side for size in ("big", "Big", "bigg", "Bigg") for side in ("", "l", "r", "m"))
_RENAMED = {
    **dict.fromkeys(_SPACES, " "),
    **dict.fromkeys((*_SILENT, *_SIZES), ""),
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), r"\frac "),
    **dict.fromkeys(("dbinom", "tbinom"), r"\binom "),
    **_WORDS_FOR,
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


def final_answer(response: str) -> tuple[str | None, Reason | None]:
    r"""Return the answer that a response ends on, and why there is none: NO_ANSWER or TOO_LONG.

    The answer is what the last `\boxed{...}` holds, even if that is empty or never closed. Boxes right before it belong
    to it if only a comma, "and" or "or" comes between. Without a box, it is the rest of the line after the last `####`.
    Without that mark, it is the rest of the line after the last "answer is" or "answer:", or the formula displayed
    below. These marks count only in the last 4000 characters.
    """
    at = max(response.rfind(r"\boxed"), response.rfind(r"\fbox"))
    text = _boxes_to(response, at) if at >= 0 else _said(response[-_TAIL:])
    if text is None or not text.strip():
        return None, Reason.NO_ANSWER
    if len(text) > MAX_ANSWER:
        return text[:MAX_ANSWER], Reason.TOO_LONG
    return text.strip(), None


def tidy(answer: str) -> str:
    r"""Return the tidy form of an answer or a gold.

    >>> tidy(r"$\left(3, \dfrac12\right)$.")
    '(3, \\frac{1}{2})'
    >>> tidy(r"12{,}345 \text{ cm}^2")
    '12,345 "cm" ^2'
    """
    text = _RAISED.sub(_power, _VULGAR.sub(_vulgar, _COLOR.sub("", answer)))
    text = _ROOT.sub(r"\\sqrt{\1}", text).translate(_UNICODE)
    text = _WORDS.sub(_quoted, _FONT.sub(r" \1 ", text))
    # A command takes in the blanks after it, so a blank after its new name changes nothing.
    text = _THIN_COMMA.sub(",", text)
    text = COMMAND.sub(lambda match: _RENAMED.get(match[1], match[0]), _NO_FENCE.sub(" ", text))
    text = _DEGREES.sub(" ", _BRACED_COMMA.sub(",", text.replace("$", " ")))
    for _ in range(2):  # two passes suffice for a fraction within a fraction: no answer is \frac\frac123
        text = _SHORT_FRAC.sub(_full_frac, text)
    if _OVER.search(braced := f"{{{text}}}"):
        text = _OVER.sub(r"\\frac{\1}{\2}", braced)
    text = _SHORT_SQRT.sub(r"\\sqrt{\1}", text)
    text = _ROWS.sub(_listed, _NOT_EQUAL.sub(r"\1\\ne ", text.replace(">=", r"\ge ").replace("<=", r"\le ")))
    text = _BLANK.sub(" ", text).strip()
    text = text.rstrip(",;: ") if text.endswith("...") else text.rstrip(".,;: ")
    if text.startswith("{") and _closing(text, 0) == len(text) - 1:
        text = text[1:-1].strip()
    return _ASIDE.sub(lambda match: f' "{(match[1] or match[2]).strip()}"', text)


def squeeze(text: str) -> str:
    """Return a tidy text for comparison: blanks only between two digits, no quotes, words in lower case."""
    if len(text) > 1 and _LETTERS.fullmatch(text.replace('"', "")) and text != text.upper():  # AB is no word
        text = text.lower()
    text = _BLANK_TO_DROP.sub("", text.replace('"', ""))
    text = _BRACED_CHARACTER.sub(r"\1\2", text)
    if len(text) == 3 and text[0] == "(" and text[1].isalpha() and text[2] == ")":
        return text[1]  # (C) is the choice C
    return text


def _boxes_to(response: str, at: int) -> str | None:
    """Return the contents of the box at this place, after those of the boxes that lead up to it."""
    last = _box_at(response, at)
    if last is None:
        return None
    texts, end = [last[0]], at
    for _ in range(_MOST_BOXES):
        start = max(0, end - MAX_ANSWER)
        before = response[start:end]
        place = max(before.rfind(r"\boxed"), before.rfind(r"\fbox"))
        box = _box_at(response, start + place) if place >= 0 else None
        if box is None or box[1] > end or not _BETWEEN.fullmatch(response, box[1], end):
            break
        texts.insert(0, box[0])
        end = start + place
    return ", ".join(texts)


def _box_at(response: str, at: int) -> tuple[str, int] | None:
    """Return a box's contents, cut after MAX_ANSWER, and where the box ends; None if it is not closed."""
    text = response[at : at + MAX_ANSWER + 64]
    head = _BOX.match(text)
    if head is None:
        return None
    start = head.end()
    if not text.startswith("{", start):
        bare = re.split(r"[\s$.]", text[start:], maxsplit=1)[0]
        return bare, at + start + len(bare)
    end = _closing(text, start)
    if end is None:
        return (text[start:], at + len(text)) if len(text) > MAX_ANSWER + 63 else None
    return text[start + 1 : end], at + end + 1


def _said(tail: str) -> str | None:
    hashes = tail.rfind("####")
    if hashes >= 0:
        return tail[hashes + 4 :].lstrip().partition("\n")[0]
    *_, said = [None, *_SAID.finditer(tail)]
    if said is None:
        return None
    rest = tail[said.end() :].lstrip(_NOT_SAID + "\n")
    if display := _DISPLAY.match(rest):
        return display[1] or display[2]
    line = rest.partition("\n")[0].strip(_NOT_SAID)
    return re.split(r"\.(?:\s|$)", line, maxsplit=1)[0].strip(_NOT_SAID)


def _closing(text: str, start: int) -> int | None:
    """Return where the brace opened at `start` is closed."""
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


def _power(match: re.Match[str]) -> str:
    return f"^{{{unicodedata.normalize('NFKC', match[0])}}}".replace("\u2212", "-")


def _vulgar(match: re.Match[str]) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", match[0]).partition("\u2044")
    return rf"\frac{{{top}}}{{{bottom}}}"


def _listed(match: re.Match[str]) -> str:
    """Return a system of equations as the list of its rows. A system with columns stays unchanged."""
    rows = [row.strip().rstrip(",.;") for row in re.split(r"\\\\", match[2].replace("&=", "="))]
    rows = [row for row in rows if row]
    return ", ".join(rows) if rows and all("=" in row and "&" not in row for row in rows) else match[0]


def _full_frac(match: re.Match[str]) -> str:
    top, bottom = (match[1] or match[2] or "", match[3] or match[4] or "")
    return rf"\frac{{{top.strip()}}}{{{bottom.strip()}}}"
