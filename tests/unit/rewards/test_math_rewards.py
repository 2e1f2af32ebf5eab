"""The maths reward: right answers however they are written, wrong ones however they are dressed."""

import random
import re

import pytest

from openrlhf_shear.rewards import Verdict, grade_math
from openrlhf_shear.rewards.maths.answers import final_answer
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


def pairs(table: str) -> list[tuple[str, str]]:
    """Gold and answer of each case."""
    return [tuple(case.split(" ~ ")) for line in table.strip().splitlines() for case in line.split("    ")]


def test_the_final_answer_is_the_last_one():
    for response, answer in (
        *((r"so $\boxed{42}$.", "42"), (r"\boxed{1}, no, \boxed{\frac{1}{2}} it is", r"\frac{1}{2}")),
        *((r"\boxed{\{1,2\}}", r"\{1,2\}"), (r"\boxed{\boxed{5}}", "5"), (r"\boxed {7}", "7"), (r"\boxed 7$", "7")),
        (r"\boxed{\begin{pmatrix} 1 \\ {2} \end{pmatrix}}", r"\begin{pmatrix} 1 \\ {2} \end{pmatrix}"),
        *((r"\fbox{7}", "7"), (r"#### 1 \boxed{2}", "2"), (r"\boxed{2} #### 1", "2"), ("16 - 3 = 13\n#### 13\n", "13")),
        ("The answer is 5. But the Final Answer: **$7.50$**.\nBye", "$7.50$"),
        *(("the answer is 3.14", "3.14"), ("It is 42. The answer is 42!", "42"), ("#### Answer\n42", "42")),
        (r"The answer is \(n! (n-1)\)! Done.", r"\(n! (n-1)\)"),
        *((f"The answer is 42.\n\n#### {head}\nSo it is.", "42") for head in ("Verification of 6 * 7", "Conclusion")),
        *((text, "42 dogs") for text in ("#### 42 dogs", "The answer is 42 dogs.")),
        *(("Final answer:\n#### a+b", "a+b"), ("The answer is as follows.\n#### True", "True")),
        *(("Which answer is right? Option B.\n#### B", "B"), ("The answer is 4! = 24", "4! = 24")),
    ):
        assert final_answer(response) == (answer, None)


def test_a_number_of_things_that_the_question_does_not_name_is_not_a_number():
    for question, equal in (("How many dogs are there?", True), ("How many cats are there?", False)):
        assert cheap("42 dogs", "42", question=question).correct is equal


def test_no_final_answer():
    for response in ("", "42", r"\boxed{}", r"\boxed{1} and \boxed{2", r"\boxed", "#### ", "answer"):
        assert final_answer(response) == (None, "no_answer")
        assert grade_math(response, "1", workers=NoWorkers()).reason == "no_answer"


CHEAP_RIGHT = pairs(r"""
023 ~ 23    27.0 ~ 27    1,234 ~ 1234    1234 ~ 1{,}234    1000000 ~ 10^6    300000 ~ 3 \times 10^{5}    10\% ~ 10
0.5 ~ 50\%    \$5 ~ 5    5.4 \text{ cents} ~ 5.4    864 ~ 864\text{ square inches}
15\mbox{ cm}^2 ~ 15\text{ square centimeters}    5000000 ~ 5\text{ million}    90^\circ ~ 90    90 ~ 90 degrees
2\sqrt{5} ~ 2\sqrt{5} \text{ units}    \frac{1}{2} ~ \dfrac12    \frac{1}{2} ~ 0.5
\frac{270}7\text{ degrees} ~ \frac{270}{7}    3/2 ~ 1\frac{1}{2}
-\frac{1}{2} ~ \frac{-1}{2}    5 ~ x = 5    5 ~ \frac{10}{2} = 5    5 ~ \text{Area} = 5
\approx 8.24 \text{ mph} ~ 8.24    2,3 ~ 3, 2    2,3 ~ \{2,3\}    2,3 ~ x=2 \text{ or } x=3    2,3 ~ 2 and 3
$221,$8$ ~ 8,221    $10^{100}$,$10^{1 / 100}$ ~ 10^{1/100},10^{100}    (1,2) ~ \left( 1, 2.0 \right)    (1,2) ~ 1, 2
[1,2) ~ \left[1,2.0\right)    x \in [-2,7] ~ [-2,7]    (-\infty, 1) ~ (-\infty,1)    \text{(C)} ~ C
\text{Evelyn} ~ evelyn    2516_8 ~ 2516_{8}    2516_8 ~ 2516    -2 ~ −2    288 \pi ~ 288π    \sqrt{51} ~ √51
f(x)=x,f(x)=-x ~ f(x)=-x, f(x)=x
""")


def test_the_cheap_match_accepts():
    for gold, answer in CHEAP_RIGHT:
        assert cheap(answer, gold) == Verdict(True, answer=answer, method="normalized"), gold


CHEAP_WRONG = pairs(r"""
5 ~ 6    5 ~ 5x    5 ~ 5\mathrm{e}    5 ~ 5\text{ million}    5 ~ 5\text{ or six}    5 ~ 5 or 6    5 ~ \pm 5
5 ~ 0.05\%    -3 ~ 3    1/3 ~ 0.333333    2.5 ~ 2.501    12 ~ 1 2    1234 ~ 1, 234    (1,2) ~ (2,1)    (1,2) ~ [1,2]
[1,2] ~ \{1,2\}    2,3 ~ 2    16,3,1,1 ~ 16,3,1    x=1,y=2 ~ 2,1    x=1 ~ y=1    xy=4 ~ 4    x^2+1=0 ~ 1=2
(3,\frac{\pi}{2}) ~ (\frac{\pi}{2},3)    \pi ~ 2x=\pi    \{\} ~ \{5,6\}    15\mbox{ cm}^2 ~ 15\mbox{ m}^2
2\pi\text{ cm} ~ 2\pi\text{ m}    52 ~ 52_8    90^\circ ~ 90 \text{ radians}    \text{even} ~ \text{odd}
\text{no} ~ \text{on}    x \text{ is even} ~ x    0 ~ \emptyset    2 ~ 2'
""")


def test_the_cheap_match_refuses():
    assert [pair for pair in CHEAP_WRONG if cheap(pair[1], pair[0]).correct] == []


def test_the_question_is_no_answer():
    for gold, answer in pairs(r"""
1024 ~ 2^{10}    10 ~ \sum_{k=1}^{4} k    10 ~ 2+8    120 ~ 5!    4\sqrt{2} ~ \sum_{k=1}^{4}\sqrt{2}
\sqrt{2} ~ 2\sin{45}    \frac{7}{12} ~ \frac{84}{144}    \frac{1}{3} ~ 0.\overline{3}    n(n-1) ~ 2\sum_{k=1}^{n-1} k
"""):
        assert cheap(answer, gold).reason == "unevaluated", answer


RIGHT = pairs(r"""
(-\infty,1) ~ x<1    [1,2) ~ 1\le x<2    x \in [-2,7] ~ -2 \leq x \leq 7    (0,9) \cup (9,36) ~ x\in(9,36)\cup(0,9)
\frac{\sqrt{3}}{3} ~ \frac{1}{\sqrt{3}}    \frac{\sqrt2}{2} ~ \frac{1}{\sqrt2} \approx 0.707
\frac{\pi}{2} ~ 0.5\pi    12\pi ~ \pi \cdot 12 \text{ cm}^3    6-5i ~ -5i+6
1 \pm \sqrt{19} ~ 1-\sqrt{19}, 1+\sqrt{19}    3,1,-1,1+\sqrt{2}, 1-\sqrt{2} ~ 1,3,-1,1\pm\sqrt2
\left( 3, \frac{\pi}{2} \right) ~ (3,\pi/2)
\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix} ~ \begin{bmatrix} -\frac13 \\ \frac23 \end{bmatrix}
2x-y+3=0 ~ y = 2x + 3    f(x)=2 x ~ x \cdot 2    m_{\max }=n^{2}-n-1 ~ n(n-1)-1    \pi(R^2-r^2) ~ -\pi(r^2-R^2)
2RC+R+C ~ R+C+2CR    \binom{2n}{n} ~ \frac{(2n)!}{n!n!}    2^{1009} ~ 2\cdot 2^{1008}
\frac{\log 2}{\log 2-\log 3} ~ \frac{\log 2}{\log(2/3)}
""")


def test_math_verify_accepts(workers):
    for gold, answer in RIGHT:
        assert grade_math(rf"\boxed{{{answer}}}", gold, timeout=30, workers=workers).correct, gold


WRONG = pairs(r"""
\sqrt{2} ~ -\sqrt{2}    \sqrt{2} ~ 1.414214    \frac{\pi}{2} ~ \frac{\pi}{3}    (-\infty,1) ~ (-\infty,1]
(0,9)\cup(9,36) ~ (9,36]\cup(0,9)    (\sqrt{2},\frac{\pi}{2}) ~ (\frac{\pi}{2},\sqrt{2})    6-5i ~ 6+5i    4g ~ 4
3R^2 ~ 3r^2    \pi(R^2-r^2) ~ a-a    10^{-20}\pi ~ 0    y=2x ~ x=x    x^2+1=0 ~ x^2+2=0    2n ~ 2m
\begin{pmatrix}1\\2\end{pmatrix} ~ \begin{pmatrix}2\\1\end{pmatrix}    \emptyset ~ \{0\}
""")


def test_math_verify_refuses(workers):
    for gold, answer in WRONG:
        verdict = grade_math(rf"\boxed{{{answer}}}", gold, timeout=30, workers=workers)
        assert verdict.correct is False, gold


ONE_OF_TWO = r"""
B ~ (B) C ~ C    B ~ B. C ~ C    C ~ \text{(C) }A ~ A    B ~ \text{Option }B: D ~ D
\begin{pmatrix}7\5\end{pmatrix} ~ \begin{pmatrix} 7 \\ 5 \end{pmatrix} ~ \begin{pmatrix}75\end{pmatrix}
\begin{pmatrix}7\-5\end{pmatrix} ~ \begin{pmatrix} 7 \\ -5 \end{pmatrix} ~ \begin{pmatrix}2\end{pmatrix}
\text{No} ~ \text{No.} ~ \text{Yes}    \text{10:30 a.m.} ~ \text{10:30 a.m.} ~ \text{10:30 p.m.}
"""


def test_an_answer_is_paid_for_one_gold_alone(workers):
    """gold ~ an answer to it ~ another answer; for a choice, the answer names the other one beside it."""
    for case in re.split(r"\s{4}|\n", ONE_OF_TWO.strip()):
        gold, answer, other = case.split(" ~ ")
        assert grade_math(rf"\boxed{{{answer}}}", gold, timeout=30, workers=workers).correct, case
        wrong = [(other, gold), (answer, other)]
        for given, asked in wrong:
            assert not grade_math(rf"\boxed{{{given}}}", asked, timeout=30, workers=workers).correct, case


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


def test_megabytes_and_noise_are_read_in_linear_time():
    # Two seconds as it is; anything quadratic in 10 MB takes hours.
    for unit in ("{", "}", r"\boxed{", r"\boxed", "#### ", "answer is ", "\\", r"\frac{", "$", " ", "1,", r"\text{"):
        text = unit * (10_000_000 // len(unit))
        for response in (text, r"\boxed{" + text, r"\boxed{" + text + "}"):
            assert not grade_math(response, "7", workers=Refusing()).correct
    pieces = [*r"{}()[],=1x^_+-<|!% &'", r"\frac{", r"\sqrt", r"\text{", r"\{", r"\}", r"\left(", r"\\", "\u221a", '"']
    noise = random.Random(0)
    for _ in range(3000):
        answer = "".join(noise.choices(pieces, k=noise.randrange(80)))
        grade_math(rf"\boxed{{{answer}}}", "(7, 8)", workers=Refusing())
        tidy(answer)
