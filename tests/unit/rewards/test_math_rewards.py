"""The maths reward: right answers however they are written, wrong ones however they are dressed."""

import random

import pytest
from maths_answers import TABLES, cases

from openrlhf_shear.rewards import Verdict, grade_math
from openrlhf_shear.rewards.maths.text import MAX_ANSWER, tidy
from openrlhf_shear.rewards.maths.workers import MathWorkers


@pytest.fixture(scope="module")
def workers(needs_jail):
    with MathWorkers(1) as some:
        yield some


class NoWorkers:
    """Workers for answers that the cheap match must settle: each call fails the test."""

    def compare(self, gold, answer, *_):
        raise AssertionError(f"{answer!r} against {gold!r} went to a worker")


def cheap(answer, gold, **options):
    return grade_math(rf"\boxed{{{answer}}}", gold, workers=NoWorkers(), **options)


def test_a_number_of_things_that_the_question_does_not_name_is_not_a_number():
    for question, equal in (("How many dogs are there?", True), ("How many cats are there?", False)):
        assert cheap("42 dogs", "42", question=question).correct is equal


def test_no_final_answer():
    assert grade_math("42", "1", workers=NoWorkers()).reason == "no_answer"


def test_what_the_cheap_match_settles():
    for gold, answer in cases(TABLES["cheap_right"]):
        assert cheap(answer, gold) == Verdict(True, answer=answer, method="normalized"), gold
    assert [pair for pair in cases(TABLES["cheap_wrong"]) if cheap(pair[1], pair[0]).correct] == []
    for gold, answer in cases(TABLES["question"]):
        assert cheap(answer, gold).reason == "unevaluated", answer


def test_what_math_verify_settles(workers):
    for table, correct in (("verified", True), ("refused", False)):
        for gold, answer in cases(TABLES[table]):
            verdict = grade_math(rf"\boxed{{{answer}}}", gold, timeout=30, workers=workers)
            assert verdict.correct is correct, (gold, answer)


def test_an_answer_is_paid_for_one_gold_alone(workers):
    for gold, answer, other in cases(TABLES["one_of_two"]):
        assert grade_math(rf"\boxed{{{answer}}}", gold, timeout=30, workers=workers).correct, gold
        for text, another in ((other, gold), (answer, other)):
            assert not grade_math(rf"\boxed{{{text}}}", another, timeout=30, workers=workers).correct, gold


def test_a_division_that_was_the_question_is_no_answer(workers):
    question = r"What is $144 \div 12$?"
    for copy in ("144:12", "144/12", r"\frac{144}{12}"):
        assert not grade_math(rf"\boxed{{{copy}}}", "12", question=question, timeout=30, workers=workers).correct, copy
    for gold, answer in (("12", "12"), (r"\frac{1}{2}", "1:2"), ("3:2", "1.5")):
        assert grade_math(rf"\boxed{{{answer}}}", gold, timeout=30, workers=workers).correct, gold


@pytest.mark.parametrize(
    "response",
    [
        "**Answer**: 42",
        "**Final Answer**: $42$",
        "*Answer*: 42",
        "#### **42**",
        "**Answer:** 42",
        "<answer>**42**</answer>",
    ],
)
def test_bold_answers_are_read(response):
    assert grade_math(response, "42", formats=("boxed", "tags"), workers=NoWorkers()).correct


def test_an_absolute_tolerance(workers):
    assert cheap("4.25", "4.2", tolerance=0.1).correct and cheap(r"4.25\%", "4.2", tolerance=0.1).correct
    assert not cheap("4.31", "4.2", tolerance=0.1).correct and not cheap("4.25", "4.2").correct
    assert grade_math(r"\boxed{3.14}", r"\pi", tolerance=0.01, timeout=30, workers=workers).correct
    assert not grade_math(r"\boxed{3.12}", r"\pi", tolerance=0.01, timeout=30, workers=workers).correct


def test_any_gold_of_a_list_is_accepted(workers):
    assert cheap("2", ["1", "2"]).correct and not cheap("3", ["1", "2"]).correct
    assert grade_math(r"\boxed{1+x}", ["7", "x+1"], timeout=30, workers=workers).correct


def test_bad_golds_and_options_raise():
    for gold in ("", " $ $ ", [], [""], None, 7, ["1", 2], "1" * (MAX_ANSWER + 1)):
        with pytest.raises(ValueError, match="gold"):
            grade_math("1", gold)
    with pytest.raises(ValueError, match="timeout must be above 0"):
        grade_math("1", "1", timeout=0)
    with pytest.raises(ValueError, match="tolerance must be"):
        grade_math("1", "1", tolerance=float("nan"))


def test_other_types_and_long_answers_are_graded_wrong():
    for response in (None, b"\\boxed{1}", 1, ["\\boxed{1}"]):
        assert grade_math(response, "1", workers=NoWorkers()).reason == "not_text"
    verdict = cheap("1" * (MAX_ANSWER + 1), "1")
    assert (verdict.reason, len(verdict.answer)) == ("too_long", 500)


PAYLOADS = [
    *("__import__('os').system('x')", "().__class__.__bases__[0]", r"\text{x.__class__}", "a.b.c", "True", "print(1)"),
    *("lambda: 1", "9**9**9**9", "1e999999999", "99999999!", r"\binom{10^9}{5*10^8}", "9" * 1999, "1/" * 900 + "1"),
    *(r"\frac{1}{" * 1000 + "1" + "}" * 1000, "{" * 999 + "}" * 999, "(1,2)," * 300 + "1", r"\{" * 400 + r"\}" * 400),
    *("(" * 99 + "1" + ")" * 99, "{" * 99 + "7" + "}" * 99),  # short, but deep
    *("\x00", "\ud800", "\u0663\u0667", "0/0", r"\infty-\infty", "nan", r"\operatorname{eig}(1)", r"\int_0^1 x dx"),
]


class Refusing:
    """Stand-in for workers that remembers the answers that reached it."""

    def __init__(self):
        self.seen = set()

    def compare(self, gold, answer, *_):
        self.seen.add(answer)
        return False, "wrong"


def test_no_payload_is_accepted_and_only_plain_latex_reaches_a_worker():
    stand_in = Refusing()
    for gold in (r"2\sqrt{3}", "7", "1,2", "(1,2)", r"\text{yes}"):
        for payload in PAYLOADS:
            for answer in (payload, rf"\text{{{payload}}}"):
                assert not grade_math(rf"\boxed{{{answer}}}", gold, workers=stand_in).correct
    assert stand_in.seen <= {"True", "nan", "0/0", r"\infty-\infty"}


def test_noise_is_read():
    pieces = [*r"{}()[],=1x^_+-<|!% &'", r"\frac{", r"\sqrt", r"\text{", r"\{", r"\}", r"\left(", r"\\", "\u221a", '"']
    noise = random.Random(0)
    for _ in range(3000):
        answer = "".join(noise.choices(pieces, k=noise.randrange(80)))
        verdict = grade_math(rf"\boxed{{{answer}}}", "(7, 8)", workers=Refusing())
        assert isinstance(verdict.correct, bool) and isinstance(tidy(answer), str), answer
