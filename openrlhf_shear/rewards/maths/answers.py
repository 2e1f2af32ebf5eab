"""From a response to its final answer. Nothing is evaluated."""

from collections.abc import Sequence

import regex as re

from openrlhf_shear.rewards.maths.splitting import LETTER
from openrlhf_shear.rewards.maths.text import FORMULA, MAX_ANSWER, as_latex, closing
from openrlhf_shear.rewards.verdict import Reason

_BOX = re.compile(r"\\f?box(?:ed)?\s*+(?![A-Za-z])")
_EQUALS = rf"{LETTER}\s*+=\s*+"
_NAME_BEFORE = re.compile(rf"(?<![A-Za-z0-9\\]|[-+*/^=]\s*){_EQUALS}$")
_COUNTED = (
    r"[\s$]*+(?:\\text\s*+\{\s*+)?(?:for (?:part )?\([a-z]\)|(?!so|thus|then|but|wait|not)[a-z]{3,}),? and[\s}$]*+"
)
_BETWEEN = re.compile(
    rf"(?:{_COUNTED}\s*+$)|(?:{_EQUALS}$|"
    + r"[\s$,;]|\\[,;: ]|\\(?:quad|qquad|text\s*\{\s*(?:and|or)\s*\})|\\[()]|\b(?:and|or)\b)*+"
)
_LISTS = re.compile(r"[,;]|and|or")
_MOST_BOXES = 16
_DISPLAY = re.compile(r"\\\[(.*?)\\\]|\$\$(.*?)\$\$", re.DOTALL)
_ANSWER_IS = r"\banswer[*_]*+(?: is|\s*:)\s*:?|\b(?:final |(?<=^[#*_ \t]*))answer[*_ \t]*+(?=\n)"
_SAID = re.compile(f"(?im){_ANSWER_IS}")
_MARK = re.compile(rf"(?im)\\f?box|####|<answer>|{_ANSWER_IS}")
_MOST_MARKS = 64
_TAIL = 4000
_NOT_SAID = "*_ \t"
_BARE = re.compile(r"^\$?[\[<]\$?([^\[\]<>,]*?)\$?[\]>]\$?$")  # [18]: the brackets of the instruction
_BOLD = re.compile(r"(?<![\w*)}\]])(\*{1,3}|_{2}|`)(?=[^\s*])((?:(?!\1)[^\n])*?[^\s*])\1(?![\w*])")
_FILLERS = "clear|simple|as follows|as (?:we )?(?:saw|seen)|that|it is|the (?:number|value)"
_FILLER = re.compile(  # before a value
    r"(?i)(?:therefore|thus|hence|so|then|clearly|simply|just|indeed|of course|obviously|exactly|equals?|equal to"
    rf"|approximately|about|{_FILLERS})(?![A-Za-z])[\s,:]*+"
)
_TAG = re.compile(r"<answer>((?:(?!</?answer>).)*+)</answer>", re.DOTALL)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_CONDITIONAL = re.compile(r"#++,? (?:where|for|with|if|when)\b")  # after a formula, masked
_STATES = re.compile(r"(?i)\b(?:is|are|equals|equal to)\b[\s:]*+")
_NUMBER = re.compile(r"[-+]?(?<![A-Za-z0-9.])(?:[0-9][0-9,]*+(?:\.[0-9]++)?+|\.[0-9]++)(?:\s*+/\s*+[0-9]++)?+%?")
_VALUE = re.compile(r"(?:[^A-Za-z]|\\[A-Za-z]++|(?:sqrt|pi|sin|cos|tan|log|ln|exp)(?![A-Za-z])|[A-Za-z](?![A-Za-z]))*+")
_TERM = r"(?:[0-9]++(?:[.,][0-9]++)*+%?|sqrt|pi|[A-Za-z](?![A-Za-z]))"
_RUN = re.compile(rf"(?<![A-Za-z0-9.])[-+(]*+{_TERM}(?:\s*+[-+*/^()]++\s*+{_TERM}|{_TERM})*+\)*+")
_ENDING = re.compile(r"(?:\s*+I hope it is correct\.?+)?\s*+(?:<\|im_.*)?$", re.DOTALL)
_SENTENCE = re.compile(
    r"(?:as |given )?(?:follows|below)|simple|clear|obvious|(?:[A-Za-z',]++[\s.:]*+){3,}"
)  # words without a value
_CHOICE = re.compile(r"\(?[A-J][).:]\s")
_HEADING = re.compile(r"(?i)\W*(?:verif|check|explan|note\b|reason|summary|justif|proof)")
_SQUARE = re.compile("(?<=[0-9])\\s*+[ckm]?m[\u00b2\u00b3]")
_CHECKED = re.compile(r"(?<=[0-9].*)\s\([^()]*=[^()]*\)\s*$")  # 12 apples (7 + 5 = 12)
_END = re.compile(r"[.?](?:\s|$)|!(?=\s+[A-Z]|\s*$)")  # 4! = 24 is a factorial


def final_answer(response: str, formats: tuple[str, ...] = ("boxed",)) -> tuple[str | None, Reason | None]:
    r"""Return the answer that a response ends on, and why there is none: NO_ANSWER or TOO_LONG.

    The first of the formats that finds an answer decides, unless that is a sentence without a value and a later one
    finds more.

    - boxed: what the last `\boxed{...}` holds, even if that is empty or never closed. Boxes right before it belong to
      it if only a comma, "and" or "or" comes between. Without a box, it is the rest of the line after the last `####`.
      Without that mark, it is what the line after the last "answer is", "answer:" or heading "Final answer" states, or
      the formula displayed below.
    - tags: what the last `<answer>...</answer>` holds; of a box in it, the contents.
    - last: the last value or formula of the last line.

    Marks without a box count only in the last 4000 characters.
    """
    found = [text for name in formats if (text := _FOUND[name](response))]
    text = next((text for text in found if not _SENTENCE.fullmatch(text)), found[0] if found else None)
    if text is None or not text.strip():
        return None, Reason.NO_ANSWER
    if len(text) > MAX_ANSWER:
        return text[:MAX_ANSWER], Reason.TOO_LONG
    return text.strip(), None


def answer_place(response: str) -> int | None:
    r"""Return the character at which the final answer can first be read off; None without a marked answer.

    This is the first mark, of any kind, up to which the response ends on the same answer.

    >>> answer_place(r"The answer is 4. Check. Hence \boxed{4}."), answer_place("It is 9. The answer is 9")
    (4, 13)
    """
    formats = ("boxed", "tags")
    answer, _ = final_answer(response, formats)
    if answer is None:
        return None
    marks = [mark.start() for mark in _MARK.finditer(response)][-_MOST_MARKS:]
    ends = (*marks[1:], len(response))
    read = (start for start, end in zip(marks, ends, strict=True) if final_answer(response[:end], formats)[0] == answer)
    return next(read, None)


def _boxed(response: str) -> str | None:
    at = max(response.rfind(r"\boxed"), response.rfind(r"\fbox"))
    return _boxes_to(response, at) if at >= 0 else _unboxed(response[-_TAIL:])


def _tagged(response: str) -> str | None:
    *_, held = [None, *_TAG.finditer(response[-_TAIL:])]
    if held is None:
        return None
    if r"\boxed" in held[1] or _SAID.search(held[1]):
        return _boxed(held[1])
    text = _BOLD.sub(r"\2", held[1]).strip(_NOT_SAID + "\n")
    words = len(_WORD.findall(FORMULA.sub(" ", text)))
    if words < 3 or r"\begin" in text or _CHOICE.match(text):
        return as_latex(text.rstrip("."))
    return as_latex(_stated(text.rpartition("\n")[2].rstrip(".")))


def _last(response: str) -> str | None:
    """Return the value that the last line ends on: its last formula, what follows its last "=", or its last number."""
    if r"\boxed" in response[-_TAIL:]:
        return None
    lines = _ENDING.sub("", response[-_TAIL:]).rstrip().splitlines()
    line = _BOLD.sub(r"\2", lines[-1]).strip(_NOT_SAID) if lines else ""
    if line in (r"\]", "$$"):  # a display over several lines
        *_, display = [None, *_DISPLAY.finditer(response[-_TAIL:])]
        return display and (display[1] or display[2])
    formulas = [*FORMULA.finditer(line)]
    sentence = [part for part in _END.split(line[formulas[-1].end() if formulas else 0 :]) if part.strip()][-1:]
    if value := _last_value(sentence[0]) if sentence else None:
        return value
    if not formulas:
        return None
    first = len(formulas) - 1
    while first and _BETWEEN.fullmatch(line, formulas[first - 1].end(), formulas[first].start()):
        first -= 1
    values = [next(filter(None, formula.groups())) for formula in formulas[first:]]
    return ", ".join(value.rpartition("=")[2] if r"\text" in value else value for value in values)


def _last_value(sentence: str) -> str | None:
    """Return what follows the last "=" of plain text, else its last number, as LaTeX."""
    sentence = _SQUARE.sub("", _CHECKED.sub("", sentence))
    if "=" in sentence:
        return as_latex(_VALUE.match(sentence.rpartition("=")[2])[0])
    *_, value = [None, *(run[0] for run in _RUN.finditer(sentence) if re.search(r"[0-9]|pi", run[0]))]
    return value and as_latex(value)


_FOUND = {"boxed": _boxed, "tags": _tagged, "last": _last}
ANSWER_FORMATS = tuple(_FOUND)


def check_formats(formats: Sequence[str]) -> tuple[str, ...]:
    """Return the formats. Raises ValueError: there is none, or one is unknown."""
    formats = tuple(formats)
    if not formats or not set(formats) <= _FOUND.keys():
        raise ValueError(f"answer formats must be of {', '.join(ANSWER_FORMATS)}: got {formats}; use e.g. boxed")
    return formats


def _boxes_to(response: str, at: int) -> str | None:
    """Return the contents of the box at this place, after those of the boxes that lead up to it, all with their names.

    A single box has no name, nor has any of several if one has none.
    """
    last = _box_at(response, at)
    if last is None:
        return None
    texts, names, end = [last[0]], [_name_before(response, at)], at
    for _ in range(_MOST_BOXES):
        start = max(0, end - MAX_ANSWER)
        before = response[start:end]
        place = max(before.rfind(r"\boxed"), before.rfind(r"\fbox"))
        box = _box_at(response, start + place) if place >= 0 else None
        if box is None or box[1] > end or not _BETWEEN.fullmatch(response, box[1], end):
            break
        if box[0] != texts[0] or _LISTS.search(response, box[1], end):  # the same box once more is no list
            texts.insert(0, box[0])
            names.insert(0, _name_before(response, start + place))
        end = start + place
    with_names = len(texts) > 1 and all(names) and not any("=" in text for text in texts)
    return ", ".join(name + text for name, text in zip(names, texts, strict=True)) if with_names else ", ".join(texts)


def _name_before(response: str, at: int) -> str:
    match = _NAME_BEFORE.search(response[max(0, at - 40) : at])
    return match[0] if match else ""


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
    end = closing(text, start) or closing(text.replace(r"\{", " {").replace(r"\}", " }"), start)
    if end is None:
        return (text[start:], at + len(text)) if len(text) > MAX_ANSWER + 63 else None
    return text[start + 1 : end], at + end + 1


def _unboxed(tail: str) -> str | None:
    tail = _BOLD.sub(r"\2", tail)
    hashes = tail.rfind("####")
    *_, mark = [None, *_SAID.finditer(tail)]
    marked, _, after = tail[hashes + 4 :].strip().partition("\n")
    heads = (after and not re.search(r"[0-9$\\]", marked)) or _HEADING.match(marked)  # it heads a paragraph
    if hashes >= 0 and (mark is None or (mark.start() < hashes and not heads)):
        return _BARE.sub(r"\1", marked.strip(_NOT_SAID + ":="))
    if mark is None:
        return None
    rest = tail[mark.end() :].lstrip(_NOT_SAID + "\n")
    if display := _DISPLAY.match(rest):
        return display[1] or display[2]
    line = rest.partition("\n")[0].strip(_NOT_SAID)
    end = _END.search(_masked(line))
    return _stated(line[: end.start() if end else None].strip(_NOT_SAID))


def _masked(text: str) -> str:
    """Return a text of the same length without what its formulas say."""
    return FORMULA.sub(lambda match: "#" * len(match[0]), text)


def _stated(sentence: str) -> str:
    r"""Return the value that a sentence states; a text with at most two words outside of formulas stays unchanged.

    >>> _stated(r"The area of region \(S\) is \(2\pi\)"), _stated("She received $7.00 in change"), _stated("2 dogs")
    ('\\(2\\pi\\)', '7.00', '2 dogs')
    """
    sentence = re.sub(rf"^,?\s*+(?:{_FILLER.pattern})++(?=[-$\\(\d.])", "", sentence)
    words = _WORD.findall(FORMULA.sub(" ", sentence))
    if len(words) < 3 or _CONDITIONAL.match(_masked(sentence)):
        return sentence
    *_, last = [None, *_STATES.finditer(_masked(sentence))]
    value = sentence[last.end() :].strip(_NOT_SAID) if last else ""
    for text in (value, sentence):
        values = [*FORMULA.finditer(text), *_NUMBER.finditer(FORMULA.sub(" ", text))]
        if len(values) == 1 and (text is sentence or len(_WORD.findall(text)) > 2):
            return values[0][0]
        if values and text is value:
            return value
    return sentence
