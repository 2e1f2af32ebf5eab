r"""Plain-text mathematics as LaTeX: `x**2`, `sqrt(2)/2`, `2*pi`. Nothing is evaluated."""

import regex as re

_OPEN = re.compile(r"(?<![A-Za-z\\])sqrt\s*+\(|\^\s*+\(")
_NAMED = re.compile(r"(?<![A-Za-z\\])(pi|sin|cos|tan|log|ln|exp|theta|alpha|beta)(?![A-Za-z])")


def as_latex(text: str) -> str:
    r"""Return plain mathematics as LaTeX; a text with LaTeX commands stays unchanged.

    >>> as_latex("x**2 + sqrt(3)/2"), as_latex("2*pi"), as_latex(r"\frac12")
    ('x^2 + \\sqrt{3}/2', '2\\cdot \\pi ', '\\frac12')
    """
    text = text.strip()
    if "\\" in text:
        return text
    text = text.replace("**", "^")
    while match := _OPEN.search(text):
        end = _end_of(text, match.end())
        if end is None:
            break
        before = "^" if match[0].startswith("^") else r"\sqrt"
        text = f"{text[: match.start()]}{before}{{{text[match.end() : end]}}}{text[end + 1 :]}"
    return _NAMED.sub(r"\\\1 ", text.replace("*", r"\cdot "))


def _end_of(text: str, start: int) -> int | None:
    """Return where the parenthesis that is open at `start` is closed."""
    depth = 1
    for at in range(start, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if not depth:
            return at
    return None
