"""A light reward for GSM8K-style problems: `--reward.remote_url openrlhf_shear/rewards/last_number.py`.

The answer is what follows the last `####` or fills the last `\\boxed{}`, whichever comes later, and must be a single
number. A response without either mark is read for its last number. Not read: symbolic answers, scientific notation.
"""

from decimal import Decimal

import regex as re

from openrlhf_shear.rewards.responses import response_of

_LATEX_COMMA = re.compile(r"\{,\}|,\\!")
_SPECIAL_TOKEN = re.compile(r"<\|[^<>|]{1,64}\|>")
# At most 12 groups of thousands, possessive: no text makes the search go back by more than a few characters.
_DIGITS = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3}){1,12}+(?![0-9])|[0-9]++)(?:\.[0-9]++)?+|(?<!\.)\.[0-9]++)"
# The sign may come before or after the $. A minus right after a digit, a letter or a bracket is a difference.
_NUMBER = re.compile(
    rf"(?:(?<![0-9A-Za-z)\]}}])(?P<sign>-))?\\?\$?(?P<inner>-)?(?<![A-Za-z0-9])(?<![0-9]\.)(?P<digits>{_DIGITS})"
    r"(?![eE][+-]?[0-9])"
)
_UNICODE_SIGNS = str.maketrans({"\u2212": "-", "\uff0d": "-", "\u00a0": " "})


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict:
    """Return the reward of a single query in OpenRLHF's interface; extra_logs: `answer_found`.

    Raises ValueError: the label holds no number, or several without a mark. No response raises.
    """
    (query,), (prompt,), (label,) = queries, prompts, labels
    gold = final_number(str(label))
    if gold is None or (_marked_answer(str(label)) is None and len(_NUMBER.findall(str(label))) > 1):
        problem = f"the label holds {'no number' if gold is None else 'several numbers'}: got {str(label)[:80]!r}"
        raise ValueError(f"{problem}; give e.g. '42' or '... #### 42'")
    answer = final_number(response_of(query, prompt))
    reward = float(answer == gold)
    return {"rewards": reward, "scores": reward, "extra_logs": {"answer_found": float(answer is not None)}}


def final_number(text: str) -> Decimal | None:
    """Return the number that a text ends on, or None."""
    text = _LATEX_COMMA.sub(",", _SPECIAL_TOKEN.sub(" ", text)).translate(_UNICODE_SIGNS)
    marked = _marked_answer(text)
    numbers = [*_NUMBER.finditer(text if marked is None else marked)]
    if not numbers or (marked is not None and len(numbers) > 1):
        return None
    number = Decimal(numbers[-1]["digits"].replace(",", ""))
    return number.copy_negate() if numbers[-1]["sign"] or numbers[-1]["inner"] else number


def _marked_answer(text: str) -> str | None:
    """Return what the last `####` (to the end of its line) or closed `\\boxed{}` holds, the later one; else None."""
    hashes, box = text.rfind("####"), text.rfind("\\boxed{")
    if box > hashes:
        start, depth = box + len("\\boxed{"), 1
        for brace in re.finditer(r"[{}]", text[start:]):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                return text[start : start + brace.start()]
    return text[hashes + len("####") :].lstrip().partition("\n")[0] if hashes >= 0 else None
