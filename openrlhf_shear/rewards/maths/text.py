"""From an answer to tidy text: LaTeX with its words quoted, in one notation. Nothing is evaluated."""

import tomllib
import unicodedata
from pathlib import Path

import regex as re

MAX_ANSWER = 2000
FORMULA = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<!\\)\$(.+?)(?<!\\)\$", re.DOTALL)
ABOUT = re.compile(r"\\approx(?![A-Za-z])")


def meant(table: dict[str, list[str]]) -> dict[str, str]:
    """Return what stands for each word of a table of `words.toml`."""
    return {word: meaning for meaning, words in table.items() for word in words}


_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)

WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
_UNICODE = str.maketrans(meant(WORDS["characters"]))
_RAISED = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u207e\u207f]+")
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_DOLLARS = re.compile(r"^\s*+\$?(-?)\\\$\s*+(-?[0-9]++(?:(?:,|\{,\}|,\\!)[0-9]{3})*+(?:\.[0-9]++)?)[$.\s]*$")
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
_FUNCTIONS_IN_WORDS = {name: name for name in ("sgn", "lcm", "gcd", "max", "min")} | {"sign": "sgn", "signum": "sgn"}
_BRACKET = re.compile(r"\s*+(?:\\left\s*+)?(?:\(|\\?\{)")
_SUBSCRIPT = re.compile(r"_\{\s*+\\(?:text|mathrm|rm)\s*+\{([A-Za-z])\}\s*+\}")
_FONT = re.compile(r"\\(?:mathbf|mathit|mathsf|mathnormal|boldsymbol|bm)\s*+\{([^{}]*+)\}")
_THIN_COMMA = re.compile(r",\s*+\\!\s*+")
_NO_FENCE = re.compile(r"\\(?:left|right)\s*+\.")
COMMAND = re.compile(r"\\([A-Za-z]++|.)", re.DOTALL)
_RENAMED = meant(WORDS["commands"]) | {digit: digit for digit in "0123456789"}  # \\15: a dollar sign got lost
_LETTER_UNITS = "msghlLNJWVKCF"  # another letter in \\text{} or \\mathrm{} is a variable, a choice, e or i
_DEGREES = re.compile(r"\^\s*+(?:\\circ(?![A-Za-z])|\{\s*+\\circ\s*+\})")
_SCALE = re.compile(rf"{_DEGREES.pattern}\s*+(?:\\,)?([CFK])(?![A-Za-z])")
_ANGLE = re.compile(  # a whole answer, or an item of one
    r"(?:^|(?<=[=,(\[]))(\s*+[-+]?(?:[0-9]++(?:\.[0-9]++)?|\\frac\s*+\{[0-9]++\}\s*+\{[0-9]++\}))\s*+"
    rf"{_DEGREES.pattern}(?=[\s.]*+(?:$|[,)\]]))"
)
_OHM = re.compile(r'(?<=[0-9])\s*+(?:"[kM]"\s*+)?\\Omega$')
_MICRO = re.compile(r'(?<=[0-9])\s*+\\mu\s*+"([A-Za-z])"')
_TIME = re.compile(r'(?<![0-9.:])([0-9]{1,2}(?::[0-9]{2})?)\s*+"?\s*+([ap])\.?\s?m\b\.?\s*+"?(?=\s*+$)', re.IGNORECASE)
_JOINED = re.compile(r"(?<=[0-9)])(and|or)(?=[A-Z0-9(])")
_BREAK = re.compile(  # between two equations
    r"(?<==[^=]*)(?:\\(?:q?quad|newline)(?![A-Za-z])|\\(?:hspace\s*\{[^{}]*|text\s*\{\s*)\}|\\[\\ ;:]|[~\n])"
    r"(?:[\s$;,:~]|\\[\\,;: ])*+(?=(?:\\[A-Za-z]+|[A-Za-z])[A-Za-z0-9_'{}()]*+\s*+=)"
)
_UNIT_FRACTION = re.compile(
    r'\\frac\s*\{\s*"([A-Za-z ]+)"\s*\}\s*\{\s*"([A-Za-z ]+)"\s*(?:\^\s*\{?([23])\}?\s*)?\}'
    r'|"([A-Za-z]+)(?:"\s*(?:\\cdot\s*)?"|\s+)([A-Za-z]+)"\s*\^\s*\{\s*-\s*([123])\s*\}'
)
_UNIT_PRODUCT = re.compile(
    r"\\(?:mathrm|text|rm)\s*+\{(?:\s|\\[,; ])*([A-Za-z]+)\s*(?:\\[,;: ]|\\cdot\b)\s*([A-Za-z]+)"
    r"\s*\^\s*\{?\s*(-?[123])\s*\}?\s*\}"
)
_UNIT_TIMES = re.compile(r'(?<=[A-Za-z])"\s*\\cdot\s*"(?=[A-Za-z])')
_BRACED_LETTER = re.compile(r"(?:(?<![}\]_^]|\\[A-Za-z]*)|(?<=[_^]\{[^{}]*\}))\{\s*([A-Za-z])\s*\}(?=\s*[_^])")
_ARGUMENTS = re.compile(r"\\(frac|binom|sqrt)(?![A-Za-z])\s*+(?:\[[^\[\]]*+\])?")
_ARGUMENT = re.compile(  # a group in braces, a token, or a command with its arguments in braces
    r"\s*+(?:(?P<group>\{(?:[^{}\\]++|\\.|(?&group))*+\})|(?P<other>[0-9A-Za-z]|\\(?!(?:frac|binom|sqrt)(?![A-Za-z]))"
    r"[A-Za-z]++|(?:\\sqrt(?![A-Za-z])|\\(?:frac|binom)(?![A-Za-z])(?P<two>))\s*+(?:\[[^\[\]]*+\])?"
    r"(?&group)?+(?(two)(?&group)?+)))",
    re.DOTALL,
)
_INVERSE = re.compile(r"\\(sin|cos|tan|cot|sec|csc)\s*+\^\s*+\{\s*+-\s*+1\s*+\}")
_RATIO_UNIT = re.compile(r'"([A-Za-z]++)"\s*+/\s*+"([A-Za-z]++)"')
_ORDINAL = re.compile(r'(?<=[0-9])\s*+(?:\^\s*+\{?\s*+)?"?\s*+(?:st|nd|rd|th)\s*+"?\s*+\}?$')
_UNIT_WITH_POWER = re.compile(r"([A-Za-z]+(?:/[A-Za-z]+)?)\s*\^\s*\{?([23])\}?")
_BRACED_COMMA = re.compile(r"\{\s*+([,:])\s*+\}")
_BLANK = re.compile(r"\s++")
_BLANK_TO_DROP = re.compile(r"(?<![0-9]) | (?![0-9])")
_BRACED_CHARACTER = re.compile(r"([_^])\{([0-9A-Za-z])\}")
_LETTERS = re.compile(r"[A-Za-z ]*+")
_CALLS = {
    **{"^": ("^{", "}"), "sqrt": (r"\sqrt{", "}"), "cbrt": (r"\sqrt[3]{", "}"), "abs": ("|", "|")},
    **{"floor": (r"\lfloor ", r"\rfloor "), "ceil": (r"\lceil ", r"\rceil "), "ceiling": (r"\lceil ", r"\rceil ")},
}
_CALL = re.compile(
    r"(?|(?<![A-Za-z\\])(sqrt|cbrt|abs|floor|ceil|ceiling)|(\^))\s*+\((?P<inner>(?:[^()]++|\((?&inner)\))*+)\)"
)
_CALLED = re.compile(r"(?<![A-Za-z])(?:sqrt|cbrt|abs|floor|ceil|ceiling)\s*+\(")
_TRIGONOMETRY = "sin|cos|tan|cot|sec|csc"
_NAMED = re.compile(
    rf"(?<![A-Za-z\\])(?:a(?:rc)?(?:{_TRIGONOMETRY})|infinity|inf|oo"
    rf"|pi|{_TRIGONOMETRY}|log|ln|exp|max|min|gcd|lcm|sgn|alpha|beta|gamma|theta|sigma|omega|phi|mu)(?![A-Za-z])"
)
_LATEX_NAMES = dict.fromkeys(("infinity", "inf", "oo"), "infty") | {
    f"a{name}": f"arc{name}" for name in _TRIGONOMETRY.split("|")
}
_TIMES = re.compile(r"(?<=[0-9])(?:\s++[xX]\s++(?=[0-9])|\s*+[xX]\s*+(?=10\^))")
_PLAIN_WORD = re.compile(r"(?<![A-Za-z])(?!(?:and|units?|degrees|radians|meters|feet|inches)(?![A-Za-z]))[A-Za-z]{3,}")


_MEANT = re.compile(r"\\(?:lt|gt|leq|geq|neq|eq|in|else|equiv)(?![A-Za-z])")
_IF = re.compile(r"^\s*+(?::|(?:if|for|when|where)(?![A-Za-z]))")
_PARITY = re.compile(
    r"(?P<name>[a-zA-Z])\s++(?:is\s++)?(?:an\s++)?(?P<kind>even|odd)(?:\s++(?:integer|number))?(?![A-Za-z])"
    r"|(?P<kind>even|odd)\s++(?P<name>[a-zA-Z])(?![A-Za-z])"
)
_CONGRUENT = re.compile(r"([a-zA-Z])\s*+\\equiv\s*+([0-9]++)\s*+\(?\\mod\s*+\{?([0-9]++)\}?\)?")
_RELATION = re.compile(r"[<>=]|\\(?:le|ge|ne)(?![A-Za-z])|(?<![A-Za-z])(?:otherwise|else)(?![A-Za-z])")
_RELATIONS_OF_PIECES = {
    **{"<": r"\lt ", ">": r"\gt ", "=": r"\eq ", r"\le": r"\leq ", r"\ge": r"\geq ", r"\ne": r"\neq "},
    **dict.fromkeys(("otherwise", "else"), r"\else "),
}
_MATRIX = re.compile(r"\\begin\{([a-z]?matrix)\}.*?\\end\{\1\}", re.DOTALL)
_TWICE = re.compile(r"\\\\(?=(?:[dt]?frac|sqrt|pi|left|right|text|cdot|times|le|ge|in|infty|cup|pm|circ)(?![A-Za-z]))")
_LOST_ROW = re.compile(r"(?<!\\)\\(?=[-.0-9])")  # in data whose "\\\\" became "\\"


def tidy(answer: str) -> str:
    r"""Return the tidy form of an answer or a gold.

    >>> tidy(r"$\left(3, \dfrac12\right)$.")
    '(3, \\frac{1}{2})'
    >>> tidy(r"12{,}345 \text{ cm}^2")
    '12,345 "cm" ^2'
    """
    answer = _DOLLARS.sub(r"\1\2\\text{ dollars}", answer)
    text = _RAISED.sub(_power, _VULGAR.sub(_vulgar, _COLOR.sub("", answer)))
    text = _ROOT.sub(r"\\sqrt{\1}", text).translate(_UNICODE)
    if r"\begin" not in text and "=" in text:
        text = _BREAK.sub(", ", text)
    text = _JOINED.sub(r" \1 ", text.replace("~", " "))
    text = _BRACED_LETTER.sub(r"\1", _UNIT_PRODUCT.sub(r'"\1" \\cdot "\2" ^{\3}', text))
    text = _SUBSCRIPT.sub(r"_{\1}", text)
    text = _WORDS.sub(_quoted, _FONT.sub(r" \1 ", text))
    if r"\begin" not in text:
        text = _TWICE.sub(r"\\", text)
    if "matrix}" in text:
        text = _MATRIX.sub(lambda match: _LOST_ROW.sub(r"\\\\", match[0]), text)
    # A command takes in the blanks after it, so a blank after its new name changes nothing.
    text = _THIN_COMMA.sub(",", text)
    text = COMMAND.sub(lambda match: _RENAMED.get(match[1], match[0]), _NO_FENCE.sub(" ", text))
    text = _BRACED_COMMA.sub(r"\1", text.replace("$", " "))
    if "circ" in text:
        text = _DEGREES.sub(" ", _ANGLE.sub(r'\1 "degrees"', _SCALE.sub(r' "\1"', text)))
    if "\\" in text:
        text = _braced(_MICRO.sub(r'"micro\1"', _OHM.sub(' "ohm"', text)))
    if _OVER.search(braced := f"{{{text}}}"):
        text = _OVER.sub(r"\\frac{\1}{\2}", braced)
    text = _ROWS.sub(_listed, _NOT_EQUAL.sub(r"\1\\ne ", text.replace(">=", r"\ge ").replace("<=", r"\le ")))
    text = _BLANK.sub(" ", text).strip()
    text = text.rstrip(",;: ") if text.endswith("...") else text.rstrip(".,;: ")
    if text.startswith("{") and closing(text, 0) == len(text) - 1:
        text = text[1:-1].strip()
    if text.upper() != text.lower():
        text = _TIME.sub(
            lambda match: f'{match[1]} "{match[2].lower()}m"', _UNIT_TIMES.sub(" ", _UNIT_FRACTION.sub(_per, text))
        )
        text = _RATIO_UNIT.sub(r'"\1/\2"', _ORDINAL.sub("", _INVERSE.sub(r"\\arc\1 ", text)))
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


def as_latex(text: str) -> str:
    r"""Return plain mathematics as LaTeX; a text with LaTeX commands or other words stays unchanged.

    >>> as_latex("x**2 + sqrt(3)/2"), as_latex("2*pi"), as_latex("2.5 x 10^3")
    ('x^2 + \\sqrt{3}/2', '2\\cdot \\pi ', '2.5\\times 10^3')

    >>> as_latex(r"\frac12"), as_latex("log cabin")
    ('\\frac12', 'log cabin')
    """
    text = text.strip()
    if "\\" in text or _PLAIN_WORD.search(_NAMED.sub(" ", _CALLED.sub(" ", text))):
        return text
    text = text.replace("**", "^")
    while match := _CALL.search(text):
        before, after = _CALLS[match[1]]
        text = f"{text[: match.start()]}{before}{match['inner']}{after}{text[match.end() :]}"
    text = re.sub(r"\^(-[0-9]++|[0-9]{2,}+)", r"^{\1}", text)
    text = _TIMES.sub(r"\\times ", re.sub(r"(?<!\^\{?)\*", r"\\cdot ", text))
    return _NAMED.sub(lambda match: rf"\{_LATEX_NAMES.get(match[0], match[0])} ", text)


def closing(text: str, start: int) -> int | None:
    """Return where the brace opened at `start` is closed."""
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.start()
    return None


_SENTENCE = re.compile(r"[^.0-9]++\.")


def _quoted(match: re.Match[str]) -> str:
    words = match[1].strip()
    if words in _FUNCTIONS_IN_WORDS and _BRACKET.match(match.string, match.end()):
        return rf"\{_FUNCTIONS_IN_WORDS[words]} "
    if len(words) > 2 and _SENTENCE.fullmatch(words):  # a full stop; "a.m." keeps its own
        words = words[:-1]
    if (unit := _UNIT_WITH_POWER.fullmatch(words)) and (len(unit[1]) > 1 or unit[1] in _LETTER_UNITS):
        return f' "{unit[1]}" ^{unit[2]}'
    if words in ("-", "--") and match[1] != words:  # it parts a choice from its text
        return ' "-" '
    plain = (
        words in ("", "%", r"\%") or any(c.isdigit() for c in words) or (len(words) == 1 and words not in _LETTER_UNITS)
    )
    return f" {words} " if plain else f' "{words}" '


def _per(match: re.Match[str]) -> str:
    """Return a fraction of units, or a unit times another to a negative power, as `"m/s" ^2`."""
    above, below, power = filter(None, (*match.groups(), "1" if match[1] and not match[3] else None))
    return f'"{above.strip()}/{below.strip()}"' + ("" if power == "1" else f" ^{power}")


def _power(match: re.Match[str]) -> str:
    return f"^{{{unicodedata.normalize('NFKC', match[0])}}}".replace("\u2212", "-")


def _vulgar(match: re.Match[str]) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", match[0]).partition("\u2044")
    return rf"\frac{{{top}}}{{{bottom}}}"


def _listed(match: re.Match[str]) -> str:
    """Return a system of equations as the list of its rows, and a function by cases in the form of `_pieces`.

    Other environments stay unchanged.
    """
    rows = [row.strip().rstrip(",.;") for row in re.split(r"\\\\", match[2].replace("&=", "="))]
    rows = [row for row in rows if row]
    if rows and all("=" in row and "&" not in row and '"' not in row for row in rows):
        return ", ".join(rows)
    return _pieces(rows) or match[0]


def _pieces(rows: list[str]) -> str | None:
    r"""Return the rows of a function by cases as arguments in turn, `\cases({x},{x\geq 0},{-x},{x\lt 0})`; else None.

    Its relations get other names, since it is no inequality itself.
    """
    parts = []
    for row in rows:
        value, _, condition = row.partition("&" if "&" in row else '"')
        condition = _IF.sub("", condition.replace('"', " ")).strip()
        condition = _PARITY.sub(lambda found: rf"{found['name']}\mod 2={int(found['kind'] == 'odd')}", condition)
        condition = _CONGRUENT.sub(r"\1\\mod \3=\2", condition)
        condition = _RELATION.sub(lambda found: _RELATIONS_OF_PIECES[found[0]], condition)
        if not _MEANT.search(condition) or _PLAIN_WORD.search(COMMAND.sub(" ", f"{condition} {value}")):
            return None
        parts += [f"{{{value.strip().rstrip(',;')}}}", f"{{{condition}}}"]
    return rf"\cases({','.join(parts)})" if parts else None


def _braced(text: str) -> str:
    r"""Return a text with braces around the arguments of fractions, roots and binomials: `\frac12`, `\frac{a+b}c`."""
    for head in reversed([*_ARGUMENTS.finditer(text)]):
        parts, at = [], head.end()
        while len(parts) < (1 if head[1] == "sqrt" else 2) and (argument := _ARGUMENT.match(text, at)):
            part = argument["other"] or argument["group"][1:-1].strip()
            parts, at = [*parts, f"{{{part}}}"], argument.end()
        if len(parts) == (1 if head[1] == "sqrt" else 2):
            text = f"{text[: head.start()]}{head[0].rstrip()}{''.join(parts)}{text[at:]}"
    return text
