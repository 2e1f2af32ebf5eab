"""Answers as people and models write them: right ones of each kind beside near misses that are wrong."""

import json

import pytest
from maths_answers import DATA, TABLES, cases

from openrlhf_shear.rewards import grade_math
from openrlhf_shear.rewards.maths.answers import final_answer
from openrlhf_shear.rewards.maths.workers import MathWorkers

pytestmark = pytest.mark.usefixtures("needs_jail")
KINDS = {f"{source}, {kind}": TABLES[source][kind] for source in ("everyday", "reported") for kind in TABLES[source]}


@pytest.fixture(scope="module")
def grade():
    """Grade a boxed answer."""
    with MathWorkers(1) as workers:
        yield lambda answer, gold, **options: grade_math(
            rf"So \boxed{{{answer}}}", gold, timeout=30, workers=workers, **options
        )


@pytest.mark.parametrize("kind", KINDS)
def test_right_answers_pass_and_near_misses_fail(kind, grade):
    mistaken = []
    for gold, right, wrong in cases(KINDS[kind]):
        for answer, wanted in ((right, True), (wrong, False)):
            verdict = grade(answer, gold)
            if verdict.correct != wanted:
                mistaken.append(f"{gold} ~ {answer}: {verdict.correct}, {verdict.reason}")
    assert mistaken == [] and len(cases(KINDS[kind])) >= 6


def test_what_is_left_to_do_is_not_paid(grade):
    graded = {
        (gold, question): grade(question, gold, question=f"Find ${question}$.").reason
        for gold, question in cases(TABLES["undone"])
    }
    assert {pair: reason for pair, reason in graded.items() if reason not in ("unevaluated", "wrong")} == {}
    assert sum(reason == "wrong" for reason in graded.values()) <= 2  # a matrix product is none to math-verify
    assert [case for case in cases(TABLES["as_undone"]) if not grade(case[1], case[0]).correct] == []


@pytest.mark.parametrize("table", ["copies", "forms", "unasked"])
def test_the_question_decides_what_a_copy_is(table, grade):
    mistaken = []
    for *question, gold, right, copy in cases(TABLES[table]):
        for answer, reason in ((right, None), (copy, "unevaluated")):
            verdict = grade(answer, gold, question=question[0] if question else None)
            if verdict.reason != reason:
                mistaken.append(f"{gold} ~ {answer}: {verdict.reason}")
    assert mistaken == []


def test_an_equation_of_the_question_gives_no_quantity(grade):
    for question, gold, answer in cases(TABLES["equations"]):
        assert not grade(answer, gold, question=question).correct
        assert grade(answer, gold, question="Find it.").correct


def test_the_final_answer_of_a_response_by_its_formats():
    for line in (DATA / "final_answers.jsonl").read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        answer, reason = final_answer(case["response"], tuple(case["formats"].split(",")))
        assert (answer and answer.strip(), reason) == (case["answer"], None if case["answer"] else "no_answer"), line


def test_an_unknown_format_is_refused():
    for formats in ((), ("box",), ("boxed", "")):
        with pytest.raises(ValueError, match="answer formats must be of boxed, tags, last"):
            grade_math(r"\boxed{1}", "1", formats=formats)


@pytest.mark.parametrize(
    ("response", "gold", "right"),
    [
        (r"The roots are $\boxed{2}$ and $\boxed{-3}$.", "2, -3", True),
        (r"\boxed{2}, \boxed{-3}", "-3, 2", True),
        (r"\boxed{2} \text{ or } \boxed{-3}", "2, -3", True),
        (r"\boxed{2}, no: \boxed{-3}", "2, -3", False),
        (r"\boxed{2}, no: \boxed{-3}", "-3", True),
        (r"\boxed{1}, \boxed{2}", "2", False),
        ("The answer is:\n\\[ \\frac{1}{2} \\]\nBye.", r"\frac{1}{2}", True),
        ("**The answer is:**\n\n$$\n7\n$$", "7", True),
        ("The answer is:\n\\[ \\frac{1}{2} \\]\n\\[ 7 \\]", "7", False),
        ("The answer is: \\(x = 7\\).", "7", True),
    ],
)
def test_adjacent_boxes_and_displays(response, gold, right):
    assert grade_math(response, gold, timeout=30).correct is right
