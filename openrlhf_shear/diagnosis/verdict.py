"""The verdict of a diagnosis: four signs that the distance tracks reasoning quality, their sum, and two questions more.

Each sign is the most careful of its kind: prefixes are compared within a problem and position, changes at a position.
A sign is shown where the 95% interval lies on the right side of 0. An estimate with a warning shows nothing.

Then: do n-grams of the text show the signs as well as hidden states do? And how strongly does omega reweigh?
"""

from collections.abc import Mapping

from openrlhf_shear.report.bootstrap import Analysis, difference
from openrlhf_shear.report.estimates import Estimate
from openrlhf_shear.rollouts.localisation import PAPER_LAST_FIRST

YES, NO, OPEN, FEW = "yes", "no", "not shown", "too few"
STATES, TEXT, BOTH = "states", "text", "as well"


def verdict(analyses: Mapping[str, Analysis], problems: int, text: str = "") -> list[str]:
    """Return lines of at most 80 columns: five, two of omega's contrast, and six with a text control.

    Args:
        analyses: those of `findings.find`; "text" may be None.
        problems: number of problems with comparable prefixes.
        text: what stands in for hidden states in the text control, e.g. "3-grams of the text".
    """
    signs = _signs(analyses)
    words = {what: sign(estimate, side) for what, (estimate, side) in signs.items()}
    lines = [_line(what, words[what], estimate) for what, (estimate, _) in signs.items()]
    late, total = analyses["truncation"].last.value, analyses["groups"].retained.problems
    cut = "" if late is None else f"; {late:.0%} cut off late"
    of = list(words.values())
    lines.append(f"Verdict: {_sum(of)}, {of.count(YES)} of 4 ({problems:,} of {total:,} problems{cut})")
    contrast = analyses["contrast"]
    lines.append(_line(f"Omega, last over first quarter (paper {PAPER_LAST_FIRST})", "", contrast.last_first))
    lines.append(_line("Omega, wrong over right rollouts", "", contrast.wrong_right))
    return [*lines, *_beside(signs, _signs(analyses["text"]), text)] if analyses["text"] else lines


def _signs(analyses: Mapping[str, Analysis]) -> dict[str, tuple[Estimate, int]]:
    """Return each sign's estimate and the side of 0 on which it is expected."""
    within, changes, separation = (analyses[name] for name in ("within", "changes", "separation"))
    return {
        "Success falls with distance, wrong rollouts": (within.rho_incorrect, -1),
        "Success falls with distance, right rollouts": (within.rho_correct, -1),
        "Distance rises where success drops, by step": (changes.rho_position, -1),
        "Large distances part the outcomes better": (separation.rise_problem, 1),
    }


def _line(what: str, word: str, estimate: Estimate) -> str:
    return f"{what:43}  {word:9}  {estimate.text('.2f')}"


def _beside(states: Mapping[str, tuple], texts: Mapping[str, tuple], label: str) -> list[str]:
    """Return the lines of the text control."""
    lines, words = [f"States or text? Hidden states minus {label}, paired over problems:"], []
    for what, (own, side) in states.items():
        other = texts[what][0]
        less = difference(own, other)
        words.append(compared(own, other, less, side))
        lines.append(_line(what, words[-1], less))
    return [*lines, _text_sum(words, label.split()[0])]


def compared(states: Estimate, text: Estimate, less: Estimate, side: int) -> str:
    """Return which of the two shows a sign better, by their paired difference `less`.

    "states" or "text": it shows the sign, and shows it more strongly. "as well": the text shows the sign, and no
    difference is shown. "not shown": none of these. "too few": the difference has a warning, or no interval.

    >>> strong, none = Estimate(-0.3, -0.4, -0.2, 20, 99), Estimate(0.0, -0.1, 0.1, 20, 99)
    >>> compared(strong, strong, none, -1)
    'as well'
    """
    word, by_states, by_text = (sign(estimate, side) for estimate in (less, states, text))
    if word == YES and by_states == YES:
        return STATES
    if by_text == YES and word in (NO, OPEN):
        return TEXT if word == NO else BOTH
    return FEW if word == FEW else OPEN


def _text_sum(words: list[str], ngrams: str) -> str:
    states, text, both = (words.count(word) for word in (STATES, TEXT, BOTH))
    openings = {(True, True): "Mixed", (True, False): "The states tell more", (False, True): "The text tells more"}
    neither = "The text does as well" if both else "Too few" if set(words) == {FEW} else "Not shown"
    first = openings.get((states > 0, text > 0), neither)
    return f"{first}: states more in {states} of 4 signs, {ngrams} in {text}, alike in {both}"


def sign(estimate: Estimate, side: int) -> str:
    """Return whether the estimate lies on this side of 0: 1 means above, -1 below.

    >>> sign(Estimate(-0.3, -0.4, -0.2, 20, 99), -1), sign(Estimate(-0.3, -0.7, 0.1, 20, 99), -1)
    ('yes', 'not shown')
    """
    if estimate.low is None or estimate.warning:
        return FEW
    low, high = sorted((side * estimate.low, side * estimate.high))
    return YES if low > 0 else NO if high < 0 else OPEN


def _sum(words: list[str]) -> str:
    if YES in words:
        return YES if set(words) == {YES} else "in part"
    return next((word for word in (NO, OPEN) if word in words), FEW)
