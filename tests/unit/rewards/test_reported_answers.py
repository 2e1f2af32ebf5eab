"""Kinds of answers that people reported as misgraded: right answers of each kind beside near misses."""

import pytest

from openrlhf_shear.rewards import grade_math
from openrlhf_shear.rewards.maths.answers import final_answer
from openrlhf_shear.rewards.maths.workers import MathWorkers

pytestmark = pytest.mark.usefixtures("needs_jail")

# gold ~ a right answer ~ a wrong one
KINDS = {
    "tiny differences": r"""
\frac{1}{2^{99}} ~ 2^{-99} ~ \frac{1}{3^{80}}
1-(1/2)^{2016} ~ 1-\frac{1}{2^{2016}} ~ 1-(1/3)^{2016}
2^{1006}\sqrt{2^{2010}+2}-2^{2011} ~ 2^{2011}(\sqrt{1+2^{-2009}}-1) ~ 2^{2011}(\sqrt{1+2^{-2010}}-1)
(\sqrt{2},1-2^{-99}) ~ (\sqrt{2},1-\frac{1}{2^{99}}) ~ (\sqrt{2},1-3^{-80})
x+2^{-99} ~ \frac{1}{2^{99}}+x ~ x+3^{-80}
\sqrt{2},2^{-99} ~ \frac{1}{2^{99}},\sqrt{2} ~ 3^{-80},\sqrt{2}
\pi(1-2^{-2016}) ~ \pi-\frac{\pi}{2^{2016}} ~ \pi(1-3^{-2016})
\begin{pmatrix}x\\2^{-99}\end{pmatrix} ~ \begin{bmatrix}x\\2^{-99}\end{bmatrix} ~ \begin{pmatrix}x\\3^{-80}\end{pmatrix}
""",
    "conditions": r"""
x=2k \text{ where } k\in\mathbb{Z} ~ x=2k ~ x=3k \text{ where } k\in\mathbb{Z}
x=2k \text{ where } k\in\mathbb{Z} ~ x=2n, n\in\mathbb{Z} ~ \mathbb{Z}
x=2k, k\in\mathbb{Z} ~ 2k, k \text{ an integer} ~ x=2k, k\in\mathbb{N}
x=5\text{ when }y=3 ~ 5 ~ 3
x=5\text{ when }y=3 ~ x=5 \text{ if } y=3 ~ x=5\text{ when }y=4
k\pi ~ k\pi, k\in\mathbb{Z} ~ 2k\pi, k\in\mathbb{Z}
f(x)=0 ~ f(x)=0 \text{ for all } x ~ f(x)=1 \text{ for all } x
\frac{\pi}{6}+k\pi, k\in\mathbb{Z} ~ \frac{\pi}{6}+n\pi \text{ for any integer } n ~ \frac{\pi}{3}+n\pi, n\in\mathbb{Z}
""",
    "misread golds": r"""
2\binom{8}{3} ~ 112 ~ 58
3\binom{5}{2} ~ 30 ~ 13
200203_{-4} ~ 200203_{-4} ~ 200203_{-5}
1011_2 ~ 1011_{2} ~ 1011_3
CAB ~ CAB ~ BAC
DBCA ~ \text{DBCA} ~ ABCD
5\frac14\pi ~ \frac{21}{4}\pi ~ \frac54\pi
2\frac{1}{3}\sqrt{2} ~ \frac{7\sqrt{2}}{3} ~ \frac{2\sqrt{2}}{3}
""",
    "nested products": r"""
\frac{n(n-1)}{2} ~ \frac12 n(n-1) ~ \frac12 n(n+1)
\frac{bx}{h}(h-x) ~ \frac{bx(h-x)}{h} ~ \frac{bx(h+x)}{h}
\frac{1}{4} n(n+1) ~ \frac{n(n+1)}{4} ~ \frac{n(n+1)}{2}
\frac{n(n+1)(2n+1)}{6} ~ \frac{1}{6}n(n+1)(2n+1) ~ \frac{1}{6}n(n+1)(2n-1)
\frac{a(b+c)}{3d} ~ \frac{1}{3}\cdot\frac{a(b+c)}{d} ~ \frac{1}{3}\cdot\frac{a(b-c)}{d}
2\pi r(r+h) ~ 2 \pi r \cdot (h+r) ~ 2 \pi r \cdot (h-r)
""",
    "quantities": r"""
204 ~ m+n=204 ~ m+n=205
16 ~ |r-s|=16 ~ |r-s|=-16
75 ~ \frac{V}{\pi}=75 ~ \frac{V}{\pi}=76
45 ~ 3^{x+2}=5\cdot9=45 ~ 3^{x+2}=5\cdot9
\frac{AB}{BC}=2 ~ 2 ~ 3
4027 ~ x + y = 4027 ~ x + y = 4026
76 ~ E(2020, 1993) = 76 ~ E(2020, 1993) = 77
10 ~ x=10 ~ 2x=10
xy=4 ~ xy=4 ~ 4
2^{2009} ~ a_{2^{2009}-1}=2^{2009} ~ a_{2^{2009}-1}=2^{2010}
\sqrt{2} ~ |z+w|=\sqrt2 ~ |z+w|=\sqrt3
""",
    "thousands after a name": r"""
12345 ~ x=12,345 ~ x=12,346
12345 ~ \text{Total}=\$12,345 ~ \text{Total}=\$12,354
1234567 ~ N = 1,234,567 ~ N = 1,234,576
12345 ~ x=12{,}345 ~ x=12, 345
3,500 ~ n=3500 ~ n=3, 500
10500 ~ \text{Cost}=10,500\text{ dollars} ~ \text{Cost}=10,050\text{ dollars}
""",
    "both signs": r"""
\pm 3 ~ 3,-3 ~ 3
1,-1,7,-7 ~ ±1, ±7 ~ ±1, 7
x=\pm 3 ~ x=3 \text{ or } x=-3 ~ x=\pm 4
1\pm\sqrt{2} ~ 1+\sqrt{2}, 1-\sqrt{2} ~ 1+\sqrt{2}, 2-\sqrt{2}
\frac{-1\pm\sqrt{5}}{2} ~ \frac{-1+\sqrt{5}}{2}, \frac{-1-\sqrt{5}}{2} ~ \frac{1\pm\sqrt{5}}{2}
2, \pm i ~ i, -i, 2 ~ i, 2
(1,2),(-1,-2) ~ (1,2), (-1,-2) ~ (\pm 1, \pm 2)
""",
    "words and names in lists": r"""
\sqrt{2}+1,1-\sqrt{2} ~ \sqrt2+1\text{ or }1-\sqrt2 ~ \sqrt2+1\text{ or }1-\sqrt3
2^{-2/3}, 8 ~ 8 \text{ and } \frac{1}{\sqrt[3]{4}} ~ 8 \text{ and } \frac{1}{\sqrt[3]{2}}
f(x)=x,f(x)=2-x ~ f(x) = x \text{ or } f(x) = -x + 2 ~ f(x) = x \text{ or } f(x) = -x - 2
3,5,7 ~ n=3,5,7 ~ n=3,5
n=3,5,7 ~ 3,5,7 ~ m=3,5,7
16,3 ~ w=16, d=3 ~ w=16, d=4
f(n)=n, g(n)=1 ~ (f(n), g(n)) = (n, 1) ~ (f(n), g(n)) = (1, n)
f(x)=2x ~ f(y)=2y ~ f(y)=2x
1, \sqrt{3} ~ x=1,\sqrt{3} ~ x=1,\sqrt{2}
""",
    "congruences": r"""
n\equiv1\pmod4 ~ n \equiv 1 \pmod{4} ~ n\equiv 3\pmod 4
n\equiv1\pmod4 ~ n \equiv 5 \bmod 4 ~ n\equiv 1\pmod 5
1\pmod 4 ~ n\equiv 1 \pmod 4 ~ n\equiv 2 \pmod 4
n\equiv 1,3 \pmod 8 ~ n \equiv 3, 1 \pmod{8} ~ n \equiv 1, 5 \pmod{8}
7 ~ 194\equiv 7\pmod{11} ~ 194\equiv 8\pmod{11}
7 ~ x\equiv 7\pmod{11} ~ x\equiv 18\pmod{11}
x\equiv 2\pmod{7} ~ x\equiv -5\pmod{7} ~ x\equiv -2\pmod{7}
""",
    "units": r"""
48 ~ 48 \mathrm{~km} / \mathrm{h} ~ 84 \mathrm{~km} / \mathrm{h}
48\text{ km/h} ~ 48 \mathrm{~km} / \mathrm{h} ~ 48 \text{ m/s}
48\text{ km/h} ~ 48 km per hour ~ 48 km per minute
9.8 ~ 9.8\ \mathrm{m/s^2} ~ 8.9\ \mathrm{m/s^2}
12 ~ 12~\text{cm} ~ 13~\text{cm}
12\text{ cm} ~ 12~\mathrm{~cm} ~ 12~\text{mm}
15\text{ cm}^2 ~ 15\,\mathrm{cm^2} ~ 15\,\mathrm{cm^3}
""",
    "arguments without braces": r"""
\frac{a+b}{c} ~ \frac{a+b}c ~ \frac{a+b}d
\frac{1}{x} ~ \frac1x ~ \frac1y
\frac{\sqrt{3}}{2} ~ \frac{\sqrt3}2 ~ \frac{\sqrt2}3
\frac{a}{b} ~ \frac ab ~ \frac ba
\sqrt{x}+1 ~ \sqrt x+1 ~ \sqrt y+1
\frac{2}{\sqrt{n}} ~ \frac2{\sqrt n} ~ \frac3{\sqrt n}
\frac{\frac{1}{2}+x}{3} ~ \frac{\frac12+x}3 ~ \frac{\frac13+x}2
""",
    "points in unions": r"""
\{1\}\cup[2,3] ~ x=1 \text{ or } 2\le x\le 3 ~ x=1 \text{ or } 2\le x<3
\{0\}\cup[1,\infty) ~ x=0 \text{ or } x\ge 1 ~ x=0 \text{ or } x> 1
\{0\}\cup[1,\infty) ~ x=0, x\ge 1 ~ x=1, x\ge 0
(-\infty,-2)\cup\{5\} ~ x<-2\text{ or }x=5 ~ x<-2\text{ or }x=6
[-1,1]\cup\{3\} ~ x=3\text{ or }-1\le x\le 1 ~ x=3\text{ or }-1<x\le 1
\{2\}\cup(3,4) ~ 3<x<4 \text{ or } x=2 ~ 3<x<4
""",
    "inverse functions and angles": r"""
\arctan 2 ~ \tan^{-1} 2 ~ \tan^{-1} 3
\arcsin\frac{1}{3} ~ \sin^{-1}\frac{1}{3} ~ \cos^{-1}\frac{1}{3}
\cos^{-1}\frac{1}{3} ~ \arccos\frac13 ~ \arcsin\frac13
\frac{\pi}{4} ~ 45^\circ ~ 46^\circ
\frac{2\pi}{3} ~ 120 degrees ~ 60 degrees
45^\circ ~ \frac{\pi}{4} ~ \frac{\pi}{3}
\pi ~ 180^{\circ} ~ 90^{\circ}
""",
    "nothing": r"""
\emptyset ~ No solutions ~ 0
\emptyset ~ \text{no solution} ~ \text{all real numbers}
\text{No solution} ~ \emptyset ~ \{0\}
\text{no real solutions} ~ \text{There are no real solutions} ~ \text{two real solutions}
\varnothing ~ \{\} ~ \{\emptyset, 1\}
\text{none} ~ \emptyset ~ 1
""",
    "choices": r"""
C ~ C. 12 ~ D. 12
C ~ C) 12 ~ D) 12
C ~ \text{Option C} ~ \text{Option D}
\textbf{(C)}\ 12 ~ C) 12 ~ C) 13
\textbf{(C)}\ 12 ~ Option C ~ Option B
(C) ~ \text{(C)} ~ \text{(A)}
\text{C} ~ (C)\ 12 ~ (B)\ 12
""",
    "ordinals": r"""
12 ~ 12^{th} ~ 13^{th}
12 ~ 12^{\text{th}} ~ 11^{\text{th}}
12 ~ 12th ~ 21st
1 ~ 1^{st} ~ 2^{nd}
3 ~ 3\text{rd} ~ 2\text{nd}
22 ~ 22nd ~ 2^{2}
""",
    "roots of fractions": r"""
\frac{1}{\sqrt{n}} ~ \sqrt{1/n} ~ \sqrt{n}
\sqrt{1/n} ~ \frac{1}{\sqrt{n}} ~ \frac{1}{n}
\sqrt{1/n} ~ \sqrt{\frac1n} ~ \sqrt{\frac2n}
\sqrt{\frac{a}{b}} ~ \frac{\sqrt{a}}{\sqrt{b}} ~ \frac{\sqrt{b}}{\sqrt{a}}
\sqrt{a}\sqrt{b} ~ \sqrt{ab} ~ \sqrt{a+b}
\sqrt{x^2+1} ~ \sqrt{1+x^2} ~ x+1
""",
    "lost backslashes and prose": r"""
15 ~ \15 ~ \16
7 ~ \$7.00 ~ \$7.10
5 ~ \textbf{5} ~ \textbf{6}
\frac{1}{2} ~ $\frac{1}{2}$. ~ $\frac{1}{3}$.
6 ~ \mathrm{6} ~ \mathrm{9}
x ~ \mathit{x} ~ \mathit{y}
""",
}


@pytest.fixture(scope="module")
def workers():
    with MathWorkers(1) as some:
        yield some


@pytest.mark.parametrize("kind", KINDS)
def test_right_answers_of_a_kind_pass_and_near_misses_fail(kind, workers):
    mistaken = []
    cases = KINDS[kind].strip().splitlines()
    assert len(cases) >= 6
    for line in cases:
        gold, right, wrong = line.split(" ~ ")
        for answer, wanted in ((right, True), (wrong, False)):
            verdict = grade_math(rf"So \boxed{{{answer}}}", gold, timeout=30, workers=workers)
            if verdict.correct != wanted:
                mistaken.append(f"{gold} ~ {answer}: {verdict.correct}, {verdict.reason}")
    assert mistaken == []


# A formula of the question equals the gold: an answer must have the form of the gold. (question ~ gold ~ right ~ copy)
ASKED = r"""
Expand $(x+2)(x+5)$. ~ x^2+7x+10 ~ 10+7x+x^2 ~ (x+2)(x+5)
Expand $(x+2)(x+5)$. ~ x^2+7x+10 ~ x^2+10+7x ~ (5+x)(2+x)
Factor $x^2+7x+10$. ~ (x+2)(x+5) ~ (5+x)(x+2) ~ 10+7x+x^2
Let $f(x)=x(x-1)+3x$. Simplify it. ~ x^2+2x ~ 2x+x^2 ~ x(x-1)+3x
Add \[\frac{1}{x}+\frac{1}{y}.\] ~ \frac{x+y}{xy} ~ \frac{y+x}{yx} ~ \frac{1}{y}+\frac{1}{x}
Write $(1+\sqrt{2})(3+\sqrt{2})$ as $a+b\sqrt{2}$. ~ 5+4\sqrt{2} ~ 4\sqrt{2}+5 ~ (\sqrt{2}+1)(\sqrt{2}+3)
Find \(3(x+1)-x\). ~ 2x+3 ~ 3+2x ~ 3(1+x)-x
"""
# No formula of the question equals the gold: any form will do, but no operation may be pending.
NOT_ASKED = r"""
Find the area of the plot with sides $x-1$ and $x+1$. ~ x^2-1 ~ (x+1)(x-1) ~ x\cdot x-1
How many games do $n$ teams play? ~ \frac{n(n-1)}{2} ~ \frac{n^2-n}{2} ~ \frac{n^2-n-n+n}{2}
Find $P(x)$. ~ (x-1)(x+2) ~ x^2+x-2 ~ x^2+2x-x-2
Find the sum of the reciprocals. ~ \frac{x+y}{xy} ~ \frac{1}{x}+\frac{1}{y} ~ \frac{1}{x}+\frac{1}{y}+x-x
Find $S$. ~ 3+2\sqrt{2} ~ 2\sqrt{2}+3 ~ \sqrt{8}+3
What is the derivative? ~ 3x(x+2) ~ 3x^2+6x ~ 3x\cdot x+6x
"""


@pytest.mark.parametrize("table", [ASKED, NOT_ASKED])
def test_the_question_decides_what_a_copy_is(table, workers):
    mistaken = []
    for line in table.strip().splitlines():
        question, gold, right, copy = line.split(" ~ ")
        for answer, reason in ((right, None), (copy, "unevaluated")):
            verdict = grade_math(rf"\boxed{{{answer}}}", gold, question=question, timeout=30, workers=workers)
            if verdict.reason != reason:
                mistaken.append(f"{gold} ~ {answer}: {verdict.reason}")
    assert mistaken == []


def test_without_the_question_only_more_work_than_the_golds_is_refused(workers):
    for gold, right, copy in (
        ("(x+2)(x+5)", "x^2+7x+10", "x(x+5)+2(x+5)"),
        ("x^2+7x+10", "x^2+10+7x", "(x+2)(x+5)"),
        (r"\frac{x+y}{xy}", r"\frac{y+x}{xy}", r"\frac{1}{x}+\frac{1}{y}"),
        (r"\frac{1}{x}+\frac{1}{y}", r"\frac{x+y}{xy}", r"\frac{1}{x}+\frac{2}{y}-\frac{1}{y}"),
        (r"(1+\sqrt{2})^2", r"3+2\sqrt{2}", r"1+2\sqrt{2}+2"),
        ("x(x-1)", "x^2-x", r"x\cdot x-x"),
    ):
        assert grade_math(rf"\boxed{{{right}}}", gold, timeout=30, workers=workers).correct, right
        assert grade_math(rf"\boxed{{{copy}}}", gold, timeout=30, workers=workers).reason == "unevaluated", copy


def test_an_equation_of_the_question_gives_no_quantity(workers):
    for question, gold, answer in (
        ("If $m+n=204$, what is $(m+n)$?", "204", "m+n=204"),
        ("Let $|r-s| = 16$. Find it.", "16", "|r-s|=16"),
        (r"Given \(a+b=7\), find $c$.", "7", "a+b=7"),
        (r"Find $x$ if $8x+1\equiv 5 \pmod{12}$.", "5", r"8x+1\equiv 5 \pmod{12}"),
    ):
        assert not grade_math(rf"\boxed{{{answer}}}", gold, question=question, timeout=30, workers=workers).correct
        assert grade_math(rf"\boxed{{{answer}}}", gold, question="Find it.", timeout=30, workers=workers).correct


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("2,4,3", "2, 4, 3", "2, 3, 4"),
        ("2,4,3", r"2 \text{ and } 4 \text{ and } 3", "4, 2, 3"),
        ("3,1", "3;1", "1;3"),
        (r"\{2,1\}", "2, 1", "1, 2"),
        (r"1,\sqrt{2}", r"1, \sqrt2", r"\sqrt2, 1"),
        ("x=2,x=5", "x=2, x=5", "x=5, x=2"),
    ],
)
def test_an_ordered_list(gold, right, wrong, workers):
    for answer in (right, wrong):
        said = [
            grade_math(rf"\boxed{{{answer}}}", gold, ordered=o, timeout=30, workers=workers).correct
            for o in (True, False)
        ]
        assert said == [answer == right, True], answer


FORMATS = [  # formats, response, answer
    ("boxed", r"$\boxed{7}$ $\boxed{7}$", "7"),
    ("boxed", r"$\boxed{7}$, $\boxed{7}$", "7, 7"),
    ("boxed", "**Final Answer**\n13", "13"),
    ("boxed", "### Final Answer\n\nThe product of \\(a\\) and \\(b\\) when \\(T\\) is 3 is **6**.", "6"),
    ("boxed", "**Answer:** Verna received $7.00 in change.", "7.00"),
    ("boxed", r"Answer: The area of the region \(S\) is \(2\pi\). This ensures rigor.", r"\(2\pi\)"),
    ("boxed", r"Answer: The values are \(x = 5\) and \(x = -2\).", r"\(x = 5\) and \(x = -2\)"),
    ("boxed", "Answer: 4 blue shoe boxes and 6 red shoe boxes", "4 blue shoe boxes and 6 red shoe boxes"),
    ("boxed", "#### For T = 3:\nIt is 132.\n\nThe answer is 6.", "6"),
    ("boxed", "The answer is 6, I think.\n#### 7", "7"),
    ("boxed", "<answer>42</answer>", None),
    ("boxed", "Therefore, x = 12.", None),
    ("tags", "<think>1</think> <answer>42</answer>", "42"),
    ("tags", "<answer>1</answer>, no: <answer>\n42\n</answer>", "42"),
    ("tags", r"<answer>\boxed{42}</answer>", "42"),
    ("tags", r"<answer>\frac{1}{2}</answer>", r"\frac{1}{2}"),
    ("tags", "<answer>x**2 + sqrt(3)/2</answer>", r"x^2 + \sqrt{3}/2"),
    ("tags", "<answer>2*pi</answer>", r"2\cdot \pi"),
    ("tags", r"\boxed{42}", None),
    ("tags", "<answer>42", None),
    ("tags", "the answer is 42", None),
    ("tags", "<answer></answer>", None),
    ("last", "Therefore, x = 12.", "12"),
    ("last", "It follows.\nSo she has 45 apples.", "45"),
    ("last", "We get $x=3$ and $y=4$.", "x=3, y=4"),
    ("last", "thus\n\\[\nx=\\frac12\n\\]", r"x=\frac12"),
    ("last", "Hence the angle is pi/2.", r"\pi /2"),
    ("last", "So the area = 2*pi*sqrt(3).", r"2\cdot \pi \cdot \sqrt{3}"),
    ("last", "There are 7 of them.\nI am done", None),
    ("last", r"\boxed{3} is what I get from 7", None),
    ("last", "", None),
    ("boxed,last", r"\boxed{3} is what I get from 7", "3"),
    ("tags,boxed", r"<answer>42</answer> \boxed{3}", "42"),
    ("boxed,tags", r"<answer>42</answer> or so", "42"),
]


@pytest.mark.parametrize(("formats", "response", "answer"), FORMATS)
def test_formats_of_the_final_answer(formats, response, answer):
    found, reason = final_answer(response, tuple(formats.split(",")))
    assert (found and found.strip(), reason) == (answer, None if answer else "no_answer")


def test_an_unknown_format_is_refused():
    for formats in ((), ("box",), ("boxed", "")):
        with pytest.raises(ValueError, match="answer formats must be of boxed, tags, last"):
            grade_math(r"\boxed{1}", "1", formats=formats)
