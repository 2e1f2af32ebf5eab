r"""Is a policy paid for boxing a formula of the question, and how many honest answers does preventing that cost?

For each problem of MATH every formula of the question is graded as its answer, as it is and with its terms in another
order. A paid formula either equals the gold apart from a name (`BC = 9` for 9), or is a copy that pays. The honest
answers are the golds with variables or roots, rewritten by sympy.
"""

import re
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import sympy
from gold_programs import json_lines, row_of
from math_verify import parse
from tqdm import tqdm

from openrlhf_shear.rewards import grade_math
from openrlhf_shear.rewards.maths.guard import commands, has_variables, readable
from openrlhf_shear.rewards.maths.quantities import formulas_of, written_formulas
from openrlhf_shear.rewards.maths.text import squeeze, tidy
from openrlhf_shear.rewards.maths.values import without_name
from openrlhf_shear.rewards.maths.workers import MathWorkers

_FILES = ("math_train/*.jsonl.gz", "math_train/*.jsonl", "math500/*.jsonl")
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
    """Return rows as `gold_programs.row_of` makes them. The grader knows the question, as in training.

    Raises:
        ValueError: the folder has none of the files.
    """
    files = [path for pattern in _FILES for path in sorted(data_dir.glob(pattern))]
    rows = (row for path in files for row in json_lines(path))
    problems = [(row["problem"], row["answer"]) for row in rows if row["answer"].strip()][:limit]
    if not problems:
        raise ValueError(f"no problems found: got {data_dir}; use a folder with e.g. math500/test.jsonl")
    with MathWorkers(cores) as workers, ThreadPoolExecutor(cores) as threads:

        def graded(triples: list[tuple[str, str, str]], what: str) -> list[bool]:
            def grade(triple: tuple[str, str, str]) -> bool:
                question, gold, answer = triple
                return bool(grade_math(rf"\boxed{{{answer}}}", gold, question=question, workers=workers).correct)

            return list(tqdm(threads.map(grade, triples), what, len(triples)))

        def copies(written: Callable[[str], list[str]], chosen: Collection[int], what: str) -> tuple[dict, set[int]]:
            """Return the chosen problems that pay for one of their formulas, and those that have one."""
            tries = [(at, *problems[at], formula) for at in chosen for formula in written(problems[at][0])]
            paid = graded([(text, gold, formula) for _, text, gold, formula in tries], what)
            found = {at: (gold, formula) for (at, _, gold, formula), right in zip(tries, paid, strict=True)
                     if right and not _says(gold, formula)}  # fmt: skip
            return found, {at for at, *_ in tries}

        golds = [tidy(gold) for _, gold in problems]
        with_variables = {at for at, gold in enumerate(golds) if has_variables(gold) and '"' not in gold}
        found, asked = copies(written_formulas, range(len(problems)), "questions")
        others = [found[at] for at in with_variables & found.keys()]
        rows = [
            _row("a formula of the question", len(asked), list(found.values())),
            _row("of these, golds with variables", len(with_variables & asked), others),
        ]
        found, _ = copies(_rewritten, sorted(with_variables & asked), "rewritten")
        others = [
            pair for at, pair in found.items() if not any(_says(pair[0], f) for f in written_formulas(problems[at][0]))
        ]
        rows.append(_row("the same, terms in another order", len(with_variables & asked), others))
        questions = {gold: text for text, gold in reversed(problems)}
        for kind, found in _honest(sorted(questions)).items():
            pairs = [pair for pair in found if not _stands_in(questions[pair[0]], pair[1])]
            correct = graded([(questions[gold], gold, text) for gold, text in pairs], kind)
            lost = [pair for pair, right in zip(pairs, correct, strict=True) if not right]
            rows.append(_row(f"honest: {kind}", len(pairs), lost))
    return rows


def _stands_in(question: str, answer: str) -> bool:
    """Return whether an answer is a formula of the question."""
    return squeeze(tidy(answer)) in {squeeze(formula) for formula in formulas_of(question)}


def _rewritten(question: str) -> list[str]:
    """Return the question's formulas with their terms in another order, where sympy writes them differently."""
    found = []
    for formula in written_formulas(question):
        text = tidy(formula)
        if has_variables(text) and readable(text, commands(text)) and not _MISREAD.search(text):
            trees = parse(rf"\boxed{{{text}}}", parsing_timeout=None)
            if trees and isinstance(trees[0], sympy.Expr):
                other = sympy.latex(trees[0], order="rev-lex")
                found += [other] if squeeze(tidy(other)) != squeeze(text) else []
    return found


def _says(gold: str, formula: str) -> bool:
    """Return whether the formula is the gold, perhaps with a name: it says no more than the value."""
    plain = [squeeze(without_name(tidy(text))[1]).removesuffix("degrees") for text in (gold, formula)]
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
    return row_of("MATH", what, count, others, f"{100 * len(others) / max(count, 1):.2f}% not")
