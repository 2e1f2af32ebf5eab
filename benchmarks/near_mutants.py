r"""Is an answer paid that differs from its gold in a single place, and is a gold paid in every style of a response?

The golds are those of `gold.py` and of MATH's training set, each once. A mutant is drawn by a seed: a digit, a
sign, a bracket, a name, a root, a unit or an item is another. Some mutants are right: a set in another order.
"""

import random
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gold import LOADERS, json_lines, row_of
from tqdm import tqdm

from openrlhf_shear.rewards import grade_math
from openrlhf_shear.rewards.maths.workers import MathWorkers

_BRACKETS = {"(": "[", "[": "(", ")": "]", "]": ")"}
_NAMES = dict(zip("xynmkabtzwpqrsfgcd", "yxmnjbaswzqpsrgfdc", strict=True))
_TRIG = {"sin": "cos", "cos": "sin", "tan": "cot", "log": "ln", "ln": "log"}
_UNITS = {"cm": "mm", "m": "cm", "inches": "feet", "feet": "inches", "hours": "minutes", "cents": "dollars"}
_NOT_WORDS = r"(?s)(?!.*(?:text|mbox|mathrm))"
_LONE = r"(?s)(?!.*(?:text|mbox|mathrm|[=,<>(\[]))"  # of a single value
# kind: (pattern of a whole gold, pattern of a place, what replaces it)
MUTANTS: dict[str, tuple[str, str, str | Callable]] = {
    "a digit": ("", "[0-9]", lambda m: str((int(m[0]) + 1) % 10 or 1)),
    "one more": ("", r"(?<![0-9.])[1-9][0-9]{0,8}(?![0-9.])", lambda m: str(int(m[0]) + 1)),
    "a zero appended": ("", r"(?<![0-9.])[1-9][0-9]*(?![0-9.])", r"\g<0>0"),
    "a minus in front": ("(?!-|[$]*0)", "^", "-"),
    "a minus inside": (_NOT_WORDS, r"(?<=[,({^])(?=[1-9a-z])", "-"),
    "no minus": ("", r"-(?=[0-9\\a-z])", ""),
    "plus for minus": ("", r"(?<=[0-9A-Za-z)}\]])[-+](?=[0-9A-Za-z\\(])", lambda m: "-" if m[0] == "+" else "+"),
    "an opening bracket": (r".*[(\[][^()\[\]]*,", r"[(\[](?=[^()\[\]]*,[^()\[\]]*[)\]])", lambda m: _BRACKETS[m[0]]),
    "a closing bracket": (r".*[(\[][^()\[\]]*,[^()\[\]]*[)\]]$", r"[)\]](?=$|\\cup)", lambda m: _BRACKETS[m[0]]),
    "a tuple in another order": ("", r"(?<=\()([^(),{}]+),([^(),{}]+)(?=\))", r"\2,\1"),
    "a tuple as a set": (r"\([^()]*,[^()]*\)$", r"^\((.*)\)$", r"\\{\1\\}"),
    "an interval as a list": (r"\([^()]*\\infty[^()]*\)$", r"^\((.*)\)$", r"\1"),
    "an item less": (r"(?![$\\]*[0-9]{1,3}(?:,[0-9]{3})+$)", r",[^,(){}\[\]]+$", ""),
    "an item more": ("", "$", ", 307"),
    "a fraction upside down": ("", r"\\d?frac\{([^{}]+)\}\{(?!\1\})([^{}]+)\}", r"\\frac{\2}{\1}"),
    "a denominator": ("", r"(\\d?frac\{[^{}]+\}\{)([0-9]+)(?=\})", lambda m: f"{m[1]}{int(m[2]) + 1}"),
    "no denominator": ("", r"\\frac\{([^{}]+)\}\{[^{}]+\}", r"\1"),
    "another name": (_NOT_WORDS, r"(?<![A-Za-z\\])[xynmkabtzpr](?![A-Za-z(])", lambda m: _NAMES[m[0]]),
    "a capital": (_NOT_WORDS, r"(?<![A-Za-z\\{])[xynmkabtzpr](?![A-Za-z])", lambda m: m[0].upper()),
    "no root": ("", r"\\sqrt\{([^{}]+)\}", r"(\1)"),
    "another root": ("", r"\\sqrt\{", r"\\sqrt[3]{"),
    "no pi": ("", r"\\pi", ""),
    "pi": ("[-0-9.]+$", "$", r"\\pi"),
    "an exponent": ("", r"(\^\{?)([0-8])", lambda m: f"{m[1]}{int(m[2]) + 1}"),
    "another relation": ("", r"<|>|\\leq?(?![a-z])|\\geq?(?![a-z])", lambda m: r"\le " if m[0] == "<" else "<"),
    "a meet": ("", r"\\cup", r"\\cap"),
    "a unit": ("", r"(?<=\{)(\s*)(cm|m|inches|feet|hours|cents)(?=\})", lambda m: m[1] + _UNITS[m[2]]),
    "twice": (_LONE, r"^(?=.*[a-z\\])", r"2\\cdot "),
    "a term more": (_LONE + r"(?!.*\\(?:approx|in\b))", "$", "+1"),
    "no i": ("", r"(?<![A-Za-z\\])i(?![A-Za-z])", ""),
    "the conjugate": ("", r"[-+](?=\s*[0-9]*\s*i(?![a-z]))", lambda m: "-" if m[0] == "+" else "+"),
    "rounded": (r"(?!.*=)", r"(\.[0-9]+)[1-9](?![0-9])", r"\1"),
    "another function": ("", r"\\(sin|cos|tan|log|ln)", lambda m: rf"\{_TRIG[m[1]]}"),
    "another letter": ("", r"\(([A-E])\)", lambda m: "(B)" if m[1] != "B" else "(C)"),
    "another base": ("", r"(?<=[0-9]_)([0-8])$", lambda m: str(int(m[1]) + 1)),
    "no absolute value": ("", r"\|([^|]+)\|", r"(\1)"),
}
STYLES: dict[str, tuple[str, Callable[[str], str]]] = {  # of a response: format, and its text
    "boxed": ("boxed", lambda g: rf"So \boxed{{{g}}}."),
    "in dollars": ("boxed", lambda g: rf"So $\boxed{{{g}}}$."),
    "dollars inside": ("boxed", lambda g: rf"\boxed{{${g}$}}"),
    "displayed": ("boxed", lambda g: f"\\[\n\\boxed{{{g}}}\n\\]"),
    "dfrac": ("boxed", lambda g: rf"\boxed{{{g.replace(chr(92) + 'frac', chr(92) + 'dfrac')}}}"),
    "tfrac": ("boxed", lambda g: rf"\boxed{{{re.sub(r'.d?frac', chr(92) * 2 + 'tfrac', g)}}}"),
    "left": ("boxed", lambda g: rf"\boxed{{{_sized(g)}}}"),
    "no left": ("boxed", lambda g: rf"\boxed{{{re.sub(r'.(?:left|right)(?![a-z.])(?!.?[.])', '', g)}}}"),
    "spaces": ("boxed", lambda g: rf"\boxed{{ {g} }}"),
    "displaystyle": ("boxed", lambda g: rf"\boxed{{\displaystyle {g} \,}}"),
    "a full stop": ("boxed", lambda g: rf"\boxed{{{g}.}}"),
    "fbox": ("boxed", lambda g: rf"\fbox{{{g}}}"),
    "bold": ("boxed", lambda g: rf"**$\boxed{{{g}}}$**"),
    "after another box": ("boxed", lambda g: rf"First \boxed{{0}}. </think> It is $\boxed{{{g}}}$ in all."),
    "hash marks": ("boxed", lambda g: f"#### {g}"),
    "answer is": ("boxed", lambda g: f"The answer is ${g}$."),
    "final answer": ("boxed", lambda g: f"**Final Answer:** ${g}$"),
    "a heading": ("boxed", lambda g: f"### Final Answer\n\n$${g}$$"),
    "tags": ("tags", lambda g: f"<think>So.</think><answer>{g}</answer>"),
    "dollars in tags": ("tags", lambda g: f"<answer>${g}$</answer>"),
    "a last line": ("last", lambda g: f"Hence, we get ${g}$."),
    "a last line in parentheses": ("last", lambda g: rf"Hence, we get \({g}\)."),
}
_IN_DOLLARS = ("answer is", "final answer", "a heading", "dollars in tags", "a last line", "a last line in parentheses")


def near(data_dir: Path, cores: int, limit: int | None, seed: int = 0) -> list[dict]:
    """Return a row for each kind of mutant, which must not be paid, and for each style, which must be."""
    golds = [gold for name, read in LOADERS.items() for gold, _ in _rows(data_dir / name / "test.jsonl", read)]
    golds += [row["answer"] for path in (data_dir / "math_train").glob("*.jsonl*") for row in json_lines(path)]
    golds = list(dict.fromkeys(gold for gold in golds if gold.strip()))[:limit]
    rows = []
    with MathWorkers(cores) as workers, ThreadPoolExecutor(cores) as threads:

        def row(what: str, jobs: list[tuple[str, str, str]], right: bool) -> dict:
            def grade(job: tuple[str, str, str]) -> bool:
                gold, response, form = job
                return bool(grade_math(response, gold, formats=("boxed", form), workers=workers).correct)

            paid = tqdm(threads.map(grade, jobs), what, len(jobs), leave=False)
            return row_of(
                "golds", what, len(jobs), [job[:2] for job, yes in zip(jobs, paid, strict=True) if yes != right]
            )

        for kind in MUTANTS:
            mutants = [(gold, mutant(gold, kind, seed)) for gold in golds]
            jobs = [(gold, rf"\boxed{{{text}}}", "last") for gold, text in mutants if text not in (None, gold)]
            rows.append(row(kind, jobs, right=False))
        for style, (form, write) in STYLES.items():
            chosen = [gold for gold in golds if "$" not in gold or style not in _IN_DOLLARS]
            rows.append(row(f"style: {style}", [(gold, write(gold), form) for gold in chosen], right=True))
    return rows


def mutant(gold: str, kind: str, seed: int) -> str | None:
    """Return the gold with a change of this kind at a place that the seed draws; None if it has no such place."""
    whole, place, new = MUTANTS[kind]
    places = [*re.finditer(place, gold)] if re.match(whole, gold) else []
    if not places:
        return None
    at = random.Random(f"{seed} {kind} {gold}").choice(places)
    return gold[: at.start()] + (new(at) if callable(new) else at.expand(new)) + gold[at.end() :]


def _sized(gold: str) -> str:
    return gold if r"\left" in gold else gold.replace("(", r"\left(").replace(")", r"\right)")


def _rows(path: Path, read: Callable) -> list[tuple]:
    return [read(row) for row in json_lines(path)] if path.is_file() else []
