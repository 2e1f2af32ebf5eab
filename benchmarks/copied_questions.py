r"""Is a policy paid for boxing a formula of the question, and how many honest answers does preventing that cost?

For each problem of MATH every formula of the question is graded as its answer. A paid formula either equals the gold
apart from a name (`BC = 9` for 9), or is a copy that pays. The honest answers are the golds with variables or roots,
rewritten by sympy.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import sympy
from gold_programs import json_lines
from math_verify import parse
from tqdm import tqdm

from openrlhf_shear.rewards import grade_math
from openrlhf_shear.rewards.maths.guard import commands, has_variables, readable
from openrlhf_shear.rewards.maths.text import squeeze, tidy
from openrlhf_shear.rewards.maths.values import without_name
from openrlhf_shear.rewards.maths.workers import MathWorkers

_FILES = ("math_train/*.jsonl.gz", "math_train/*.jsonl", "math500/*.jsonl")
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|\$(.+?)\$", re.DOTALL)
_LONGEST = 300
_MISREAD = re.compile(r"[A-Z]|\\(?:sin|cos|tan|cot|sec|csc)[a-z]")  # sympy's parser misreads these
_REWRITTEN = {  # notations of an honest answer
    "terms in another order": lambda gold: sympy.latex(gold, order="rev-lex"),
    "multiplied out": lambda gold: sympy.latex(sympy.expand(gold)),
    "factored": lambda gold: sympy.latex(sympy.factor(gold)),
    "one fraction": lambda gold: sympy.latex(sympy.together(gold)),
    "a number taken out": lambda gold: sympy.latex(sympy.factor_terms(gold)),
    "denominators rational": lambda gold: sympy.latex(sympy.radsimp(gold)),
}


def copied(data_dir: Path, cores: int = 2, limit: int | None = None) -> list[dict]:
    """Return rows as `check_rewards.check_gold` makes them.

    Raises:
        ValueError: the folder has none of the files.
    """
    files = [path for pattern in _FILES for path in sorted(data_dir.glob(pattern))]
    rows = (row for path in files for row in json_lines(path))
    problems = [(row["problem"], row["answer"]) for row in rows if row["answer"].strip()][:limit]
    if not problems:
        raise ValueError(f"no problems found: got {data_dir}; use a folder with e.g. math500/test.jsonl")
    with MathWorkers(cores) as workers, ThreadPoolExecutor(cores) as threads:

        def graded(pairs: list[tuple[str, str]], what: str) -> list[bool]:
            def grade(pair: tuple[str, str]) -> bool:
                return bool(grade_math(rf"\boxed{{{pair[1]}}}", pair[0], workers=workers).correct)

            return list(tqdm(threads.map(grade, pairs), what, len(pairs)))

        with_formulas = [(gold, formulas) for text, gold in problems if (formulas := formulas_of(text))]
        tries = [(at, gold, formula) for at, (gold, formulas) in enumerate(with_formulas) for formula in formulas]
        paid = graded([(gold, formula) for _, gold, formula in tries], "questions")
        copies = {
            at: (gold, formula)
            for (at, gold, formula), right in zip(tries, paid, strict=True)
            if right and not _says(gold, formula)
        }
        expressions = {
            at for at, (gold, _) in enumerate(with_formulas) if has_variables(tidy(gold)) and '"' not in tidy(gold)
        }
        rows = [
            _row("a formula of the question", len(with_formulas), list(copies.values())),
            _row(
                "of these, golds with variables", len(expressions), [copies[at] for at in expressions & copies.keys()]
            ),
        ]
        for kind, pairs in _honest(sorted({gold for _, gold in problems})).items():
            correct = graded(pairs, kind)
            lost = [pair for pair, right in zip(pairs, correct, strict=True) if not right]
            rows.append(_row(f"honest: {kind}", len(pairs), lost))
    return rows


def formulas_of(problem: str) -> list[str]:
    """Return the LaTeX formulas of a problem, each once."""
    found = (next(filter(None, match.groups())).strip() for match in _FORMULA.finditer(problem))
    return list(dict.fromkeys(formula for formula in found if 0 < len(formula) <= _LONGEST))


def _says(gold: str, formula: str) -> bool:
    """Return whether the formula is the gold, perhaps with a name: it says no more than the value."""
    plain = [squeeze(without_name(tidy(text))[1]) for text in (gold, formula)]
    return plain[0] == plain[1]


def _honest(golds: list[str]) -> dict[str, list[tuple[str, str]]]:
    """Return pairs of gold and rewritten gold by kind, where the notation differs."""
    pairs = {kind: [] for kind in _REWRITTEN}
    for gold in tqdm(golds, "golds rewritten"):
        if not readable(tidy(gold), commands(tidy(gold))) or _MISREAD.search(tidy(gold)):
            continue
        trees = parse(rf"\boxed{{{without_name(tidy(gold))[1]}}}", parsing_timeout=None)
        if not trees or not isinstance(trees[0], sympy.Expr) or not (trees[0].free_symbols or trees[0].has(sympy.Pow)):
            continue
        known = {squeeze(tidy(gold))}
        tree = trees[0].doit()
        for kind, rewritten in _REWRITTEN.items():
            try:
                text = rewritten(tree)
            except (sympy.PolynomialError, NotImplementedError):
                continue
            if squeeze(tidy(text)) not in known and len(text) < 4 * len(gold) + 40:  # without multiplied-out 2^{4181}
                known.add(squeeze(tidy(text)))
                pairs[kind].append((gold, text))
    return pairs


def _row(what: str, count: int, others: list) -> dict:
    as_expected = count - len(others)
    return {
        "benchmark": "MATH", "graded": what, "count": count, "as expected": as_expected,
        "note": f"{100 * len(others) / max(count, 1):.2f}% not", "others": others,
    }  # fmt: skip
