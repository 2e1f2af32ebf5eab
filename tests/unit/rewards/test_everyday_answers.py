"""How people write answers: every right one beside a near miss that is wrong."""

import pytest

from openrlhf_shear.rewards import grade_math
from openrlhf_shear.rewards.maths.workers import MathWorkers

pytestmark = pytest.mark.usefixtures("needs_jail")

# gold ~ a right answer ~ a wrong one
COMPLEX = r"""
\frac{11}{5}-\frac{2}{5}i ~ \frac{11-2i}{5} ~ \frac{11+2i}{5}
\frac{11}{5}-\frac{2i}{5} ~ 2.2-0.4i ~ 2.2-0.5i
2i ~ 2\cdot i ~ -2\cdot i
6-5i ~ -5i+6 ~ 6-5
-1-16i ~ -(1+16i) ~ -(1-16i)
3+4i ~ 3+4\mathrm{i} ~ 4+3\mathrm{i}
1+\sqrt{2}i ~ 1+i\sqrt{2} ~ 1+\sqrt{2i}
\frac{1}{2}+\frac{\sqrt{3}}{2}i ~ \frac{1+i\sqrt{3}}{2} ~ \frac{1-i\sqrt{3}}{2}
-i ~ -1i ~ -1
"""
EQUATIONS = r"""
x=5 ~ 5=x ~ 5=y
5=x ~ x=5 ~ x
5 ~ 5=x ~ 6=x
y=\frac{7-3x}{2} ~ \frac{7-3x}{2}=y ~ \frac{7-3x}{2}=x
x^2+y^2=9 ~ 9=x^2+y^2 ~ x^2+y^2
x^2-1=0 ~ 0=x^2-1 ~ x^2-1
x^2-1 ~ -1+x^2 ~ x^2-1=0
y=2x+3 ~ y=3+2x ~ x=2y+3
\frac{1}{3} ~ x=1/3\approx 1.3 ~ x=1/4\approx 1.3
\frac{1}{3} ~ x=\frac{1}{3}\approx 0.333 ~ x\approx 0.333
2\sqrt{2} ~ 2\sqrt{2}\approx 2.83 ~ 2.83
8.24 ~ x\approx 8.24 ~ x\approx 8.25
"""
NAMES = r"""
1 ~ A:B=1 ~ A:B=2
1 ~ |AB|=1 ~ |AB|=-1
11:21 ~ V_1:V_2=11:21 ~ V_1:V_2=21:11
11:21 ~ \frac{11}{21} ~ \frac{21}{11}
\frac{1}{2} ~ 1:2 ~ 2:1
2:3:4 ~ 2 : 3 : 4 ~ 2:4:3
12 ~ S_{\triangle ABC}=12 ~ S_{\triangle ABC}=13
60 ~ \angle ABC = 60^\circ ~ \angle ABC = 61^\circ
5 ~ AB = 5 ~ AB = 6
3 ~ f(2)=3 ~ f(2)=4
10 ~ P(2) = 10 ~ P(10) = 2
\frac{1}{2} ~ P(A) = 0.5 ~ P(A) = 0.4
4 ~ \text{Area} = 4\text{ cm}^2 ~ \text{Area} = 5\text{ cm}^2
5 ~ \|v\| = 5 ~ \|v\| = 4
7 ~ n_{\min} = 7 ~ n_{\min} = 8
7 ~ \max = 7 ~ \max = 8
"""
SETS = r"""
(-\infty,-1)\cup(3,\infty) ~ x<-1 or x>3 ~ x<-1 or x\ge 3
(-\infty,-1)\cup(3,\infty) ~ x<-1\text{ or }x>3 ~ x<-1\text{ and }x>3
(-\infty,-1)\cup(3,\infty) ~ x > 3, x < -1 ~ x > -1, x < 3
(-\infty,-1]\cup[3,\infty) ~ x \leq -1 \lor x \geq 3 ~ x \leq -1 \lor x > 3
[-2,7] ~ -2 <= x <= 7 ~ -2 <= x < 7
[2,\infty) ~ x>=2 ~ x>2
(2,\infty) ~ \{x \mid x>2\} ~ \{x \mid x\ge 2\}
(2,5] ~ \{x | 2<x\le 5\} ~ \{x | 2\le x\le 5\}
(2,5] ~ \{x : 2 < x \leq 5\} ~ \{x : 2 < x < 5\}
(2,5] ~ \{x \in \mathbb{R} \mid 2 < x \leq 5\} ~ \{x \in \mathbb{R} \mid 2 < x \leq 6\}
(2,5] ~ 2 < x \text{ and } x \le 5 ~ 2 < x \text{ or } x \le 5
\{x \mid x > 3\} ~ x > 3 ~ x < 3
\{x \mid x > 3\} ~ (3, \infty) ~ [3, \infty)
x < -1 \text{ or } x > 3 ~ (-\infty,-1)\cup(3,\infty) ~ (-1, 3)
x \neq 3 ~ x != 3 ~ x = 3
(-\infty,3)\cup(3,\infty) ~ x \ne 3 ~ x \ne 2
(-\infty,3)\cup(3,\infty) ~ \mathbb{R} \setminus \{3\} ~ \mathbb{R} \setminus \{2\}
(1,3) ~ 3 > x > 1 ~ 3 > x \ge 1
(1,\infty) ~ 1 < x ~ 1 > x
(-\infty,\infty) ~ \mathbb{R} ~ \mathbb{Z}
(0,\sqrt{2}) ~ 0<x<\sqrt{2} ~ 0<x<2
[-1,0)\cup(0,1] ~ -1\le x<0 or 0<x\le 1 ~ -1\le x\le 1
x>-1 ~ -1<x ~ x+1>0
-3<x<3 ~ (-3,3) ~ x=-3 \text{ or } x=3
x=-3 \text{ or } x=3 ~ x=3, x=-3 ~ -3<x<3
1, 3 ~ x=1, x=3 ~ 1<x<3
(-3,3) ~ -3<x<3 ~ x=-3, x=3
\{1,\sqrt{3}\} ~ \sqrt{3}, 1 ~ (1,\sqrt{3})
(-\sqrt{3},\sqrt{3}) ~ -\sqrt{3}<x<\sqrt{3} ~ \{-\sqrt{3},\sqrt{3}\}
"""
LISTS = r"""
x_1=2, x_2=-3 ~ x=2, x=-3 ~ x=2, x=3
2, -3 ~ x_1=2, x_2=-3 ~ x_1=2, x_2=3
x_{1}=2, x_{2}=-3 ~ 2, -3 ~ 2, 3
2, -3 ~ x=2 \text{ or } x=-3 ~ x=2 \text{ or } x=-2
2, -3 ~ x=2; x=-3 ~ x=2
\pm 3 ~ x=3, x=-3 ~ x=3
(1,2) ~ x=1 \text{ and } y=2 ~ x=2 \text{ and } y=1
(1,2) ~ (1;2) ~ (2;1)
(1,2) ~ x=1, y=2 ~ x=2, y=1
(1,2) ~ y=2, x=1 ~ y=1, x=2
(1,2) ~ 1 \text{ and } 2 ~ 2 \text{ and } 1
(1,2) ~ (x,y)=(1,2) ~ (x,y)=(2,1)
(1,2,3) ~ a=1, b=2, c=3 ~ a=1, b=3, c=2
x=1, y=2 ~ \begin{cases} x=1 \\ y=2 \end{cases} ~ \begin{cases} x=2 \\ y=1 \end{cases}
(1,2) ~ \begin{cases} x=1 \\ y=2 \end{cases} ~ \begin{cases} x=1 \\ y=3 \end{cases}
(1,2) ~ \{\begin{array}{l} x=1 \\ y=2 \end{array} ~ \begin{array}{l} x=2 \\ y=2 \end{array}
x=1,y=2 ~ y=2,x=1 ~ y=1,x=2
1, 2 ~ \{2, 1\} ~ \{2, 3\}
1, 2, 3 ~ 3, 2, 1 ~ 1, 2, 3, ...
\text{12 and 13} ~ 12, 13 ~ 12, 14
"""
NUMBERS = r"""
25 ~ 25\text{ percent} ~ 26\text{ percent}
25\% ~ 25\text{ pct} ~ 24\text{ pct}
25\% ~ 25 percentage ~ 52 percentage
25\% ~ 25\text{ per cent} ~ 0.025
2000000 ~ 2 \text{ millions} ~ 2
42 ~ 42 dogs ~ 43 dogs
5 apples ~ 5 apples ~ 6 apples
20 years old ~ 20 years old ~ 21 years old
5 ~ 5 red balls ~ 5 sixths
2 ~ 2 hours ~ 2 xy
2 ~ 2 numbers ~ 2 hours thirty
3 ~ 3 primes ~ 3 ab
6 ~ 6 eggs ~ 6 eleven
8 ~ 8 cats ~ 8 doubled
100 ~ 100 years ~ 100 factorials
36 ~ 3 \text{ dozens} ~ 3
300000 ~ 3 \text{ hundred thousand} ~ 3000
5 ~ 5 \text{ apples} ~ 5 \text{ sixths}
60 \text{ mph} ~ 60 \text{ miles per hour} ~ 60 \text{ hours}
5 \text{ oz} ~ 5 \text{ ounces} ~ 5 \text{ gallons}
11111 ~ 11,\! 111 ~ 11,\! 112
11111 ~ 11,\!111 ~ 11111.5
17 ~ \textbf{(B)}\ 17 ~ \textbf{(B)}\ 18
\textbf{(B)}\ 17 ~ 17 ~ 18
\textbf{(B)}\ 17 ~ B ~ C
\text{(C)} ~ \text{C} ~ \text{(D)}
\textbf{(B)}\ 17 ~ (B) ~ (A)
\textbf{(B)}\ 17 ~ \text{(B) } 17 ~ \text{(C) } 17
B ~ \textbf{(B)}\ 17 ~ \textbf{(C)}\ 17
\textbf{(D) } \frac{1}{3} ~ \frac{1}{3} ~ \frac{1}{4}
9 ~ 9 (apples) ~ 8 (apples)
9 ~ 9 \text{ (apples)} ~ 90 \text{ (apples)}
\frac{1}{2} ~ ½ ~ ⅓
\frac{3}{2} ~ 1½ ~ 1⅓
x^2 ~ x² ~ x³
x^{10}+1 ~ x¹⁰+1 ~ x¹⁰-1
\frac{1}{2} ~ 1\over2 ~ 2\over1
\frac{1}{2} ~ {1 \over 2} ~ {1 \over 3}
\frac{x+1}{2} ~ {x+1 \over 2} ~ {x+1 \over 3}
5 ~ \textcolor{red}{5} ~ \textcolor{red}{6}
5 ~ \color{red}{5} ~ \color{red}{6}
5 ~ {\color{blue} 5} ~ {\color{blue} 6}
\sqrt{2} ~ √2 ~ √3
\frac{\sqrt{2}}{2} ~ √2/2 ~ √2/3
100 ~ 100 \text{ m/s} ~ 101 \text{ m/s}
1,234 ~ 1234 ~ 1, 234
1234 ~ 1{,}234 ~ 1, 234
1, 234 ~ 234, 1 ~ 1234
5 ~ \mathbf{5} ~ \mathbf{6}
5 ~ 5. ~ .5
-5 ~ −5 ~ 5
1000 ~ 1\,000 ~ 1\,001
\$5 ~ 5\text{ dollars} ~ 6\text{ dollars}
5 ~ \$5.00 ~ \$5.10
5 ~ 5€ ~ 4€
"""
EXPRESSIONS = r"""
x^2-x-2 ~ -2-x+x^2 ~ -2+x+x^2
\frac{a+b}{c} ~ \frac{a}{c}+\frac{b}{c} ~ \frac{a}{c}+b
2x+2 ~ 2(x+1) ~ 2(x+2)
3-x ~ -(x-3) ~ -(x+3)
\frac{x}{2} ~ \frac{1}{2}x ~ 2x
\frac{x}{2} ~ 0.5x ~ 0.4x
(x-1)(x+1) ~ (1+x)(x-1) ~ (1+x)(1-x)
\frac{n(n+1)}{2} ~ n(n+1)/2 ~ n(n-1)/2
\frac{\sqrt{3}}{3} ~ \frac{1}{\sqrt{3}} ~ \frac{1}{3}
e^{2x} ~ \exp(2x) ~ \exp(x)
\ln 2 ~ \ln{2} ~ \ln 3
\binom{2n}{n} ~ \frac{(2n)!}{n!n!} ~ \frac{(2n)!}{n!}
n^{2}-n-1 ~ n(n-1)-1 ~ n(n-1)+1
\begin{pmatrix} 1 \\ 2 \end{pmatrix} ~ \begin{bmatrix} 1 \\ 2 \end{bmatrix} ~ \begin{bmatrix} 2 \\ 1 \end{bmatrix}
\begin{pmatrix}1\\2\end{pmatrix} ~ \left[\begin{array}{c}1\\2\end{array}\right] ~ \begin{bmatrix} 1 \\ 3 \end{bmatrix}
"""
SYMBOLIC = r"""
(1,\sqrt{2}) ~ x=1, y=\sqrt{2} ~ x=\sqrt{2}, y=1
\sqrt{2},-\sqrt{2} ~ x=\sqrt2 \text{ or } x=-\sqrt2 ~ x=\sqrt2 \text{ or } x=-\sqrt3
\pm\sqrt{2} ~ x_1=\sqrt{2}, x_2=-\sqrt{2} ~ x_1=\sqrt{2}, x_2=-\sqrt{3}
1:\sqrt{3}:2 ~ 1 : \sqrt{3} : 2 ~ 1:2:\sqrt{3}
1:\sqrt{2} ~ \frac{1}{\sqrt{2}} ~ \sqrt{2}
(\frac{\pi}{2},1) ~ \begin{cases} x=\pi/2 \\ y=1 \end{cases} ~ \begin{cases} x=1 \\ y=\pi/2 \end{cases}
x=\sqrt{2},y=1 ~ y=1,x=\sqrt2 ~ y=\sqrt2,x=1
x=\frac{1}{\sqrt{2}},y=1 ~ y=1,x=\frac{\sqrt2}{2} ~ y=\frac{\sqrt2}{2},x=1
(\sqrt{2},2) ~ (\sqrt2;2) ~ (2;\sqrt2)
(\sqrt{2},2) ~ \sqrt2 \text{ and } 2 ~ 2 \text{ and } \sqrt2
(\sqrt{2},2) ~ (x,y)=(\sqrt2,2) ~ (x,y)=(2,\sqrt{2})
\frac{\sqrt{2}}{2} ~ |AB|=\frac{1}{\sqrt{2}} ~ |AB|=\frac{1}{\sqrt3}
\frac{\sqrt{2}}{2} ~ AB:BC=\frac{1}{\sqrt{2}} ~ AB:BC=\sqrt{2}
\sqrt{2} ~ \sqrt2=x ~ \sqrt3=x
x=\sqrt{2} ~ \sqrt2=x ~ x
\textbf{(B)}\ \sqrt{2} ~ \sqrt2 ~ \textbf{(C)}\ \sqrt{2}
(-\infty,-\sqrt{2})\cup(\sqrt{2},\infty) ~ x<-\sqrt2 or x>\sqrt2 ~ x<-\sqrt2 or x\ge\sqrt2
\{1,\sqrt{2}\} ~ \sqrt{2}, 1 ~ \sqrt{2}
\frac{\sqrt{3}}{2}+\frac{1}{2}i ~ \frac{\sqrt3+i}{2} ~ \frac{\sqrt3-i}{2}
2+i, 2-i ~ 2\pm i ~ 2 + i
a+b ~ b + a ~ a - b
\frac{a}{b} ~ a/b ~ b/a
2x+1 ~ f(x)=2x+1 ~ f(x)=2x
x^2+y^2=1 ~ y^2+x^2=1 ~ y^2-x^2=1
x=3 \text{ and } y=4 ~ (3,4) ~ (4,3)
(3,4),(5,6) ~ (5,6), (3,4) ~ (5,6), (4,3)
(3,4) ~ x = 3, y = 4 ~ 3
6\text{ or }7 ~ 7, 6 ~ 7
5\text{ cm} ~ 5 ~ 6\text{ cm}
\frac{1}{2},\frac{1}{3} ~ 1/3, 1/2 ~ 1/3
-\frac{1}{2} ~ \frac{-1}{2} ~ \frac12
10! ~ 10! ~ 9!
3628800 ~ 3628800 ~ 10!
2^{10} ~ 1024 ~ 1025
0.5 ~ 1/2 ~ 1/3
1.5\times 10^{3} ~ 1500 ~ 150
12 ~ 12\text{ square units} ~ 12x
\text{yes} ~ Yes ~ no
(a+b)^2 ~ (b+a)^2 ~ (a-b)^2
x(x-1)(x+2) ~ (x+2)(x-1)x ~ (x+2)(x-1)
\{x|x\neq 2\} ~ x\neq 2 ~ x=2
(-\infty,2)\cup(2,3)\cup(3,\infty) ~ x\ne 2, x\ne 3 ~ x\ne 2
(-\infty,2)\cup(2,3)\cup(3,\infty) ~ x\ne 2 and x\ne 3 ~ x\ne 2, x\ne 4
"""
TABLES = {"complex": COMPLEX, "equations": EQUATIONS, "names": NAMES, "sets": SETS, "lists": LISTS}
TABLES |= {"numbers": NUMBERS, "expressions": EXPRESSIONS, "symbolic": SYMBOLIC}


@pytest.fixture(scope="module")
def workers():
    with MathWorkers(1) as some:
        yield some


@pytest.mark.parametrize("kind", TABLES)
def test_right_answers_pass_and_near_misses_fail(kind, workers):
    mistaken = []
    for line in TABLES[kind].strip().splitlines():
        gold, right, wrong = line.strip().split(" ~ ")
        for answer, wanted in ((right, True), (wrong, False)):
            verdict = grade_math(rf"So \boxed{{{answer}}}", gold, timeout=30, workers=workers)
            if verdict.correct != wanted:
                mistaken.append(f"{gold} ~ {answer}: {verdict.correct}, {verdict.reason}")
    assert mistaken == []


# The answer leaves work to do that the gold has done. (gold ~ the question)
UNDONE = r"""
72\sqrt{2} ~ \sqrt{54}\cdot\sqrt{32}\cdot\sqrt{6}
2\sqrt{2} ~ \sqrt{8}
\sqrt{21} ~ \frac{21}{\sqrt{21}}
\frac{\sqrt{6}}{4} ~ \sqrt{\frac{3}{8}}
1+\sqrt{2} ~ \sqrt{3+2\sqrt{2}}
\sqrt{2}+1 ~ \frac{1}{\sqrt{2}-1}
2\sqrt{3} ~ \sqrt{3}+\sqrt{3}
3+2\sqrt{2} ~ (1+\sqrt{2})^2
3+2\sqrt{2} ~ 1+2+2\sqrt{2}
5\pi ~ 2\pi+3\pi
-1-16i ~ (5-4i)-2(3+6i)
\frac{3}{2}+\frac{i}{2} ~ \frac{1+2i}{1+i}
-1+i ~ \sqrt{2} e^{11\pi i/4}
2x ~ x+x
x^5 ~ x^2\cdot x^3
8x^9 ~ (2x^3)^3
x^2+2x+9 ~ (2x^2+7x-3)-(x^2+5x-12)
x^2+7x+10 ~ (x+2)(x+5)
(x+2)(x+5) ~ x^2+7x+10
(x+2)(x+5) ~ x(x+5)+2(x+5)
x^2+2x+1 ~ (x+1)^2
3x^3-5x^2+8x-35 ~ x(3x^2-2)-5(x^2-2x+7)
x+1 ~ \frac{x^2-1}{x-1}
\frac{x+y}{xy} ~ \frac{1}{x}+\frac{1}{y}
2x ~ \frac{d}{dx} x^2
\cot x ~ \frac{\cos x}{\sin x}
1+\sqrt{3} ~ 1+2\sin\frac{\pi}{3}
y=\frac{7-3x}{2} ~ 3x+2y=7
(x-3)^2+y^2=9 ~ x^2+y^2-6x=0
x>-1 ~ 2x+3>1
(-3,3) ~ x^2<9
\begin{pmatrix} 6 \\ 10 \end{pmatrix} ~ \begin{pmatrix} 1 \\ 3 \end{pmatrix}+\begin{pmatrix} 5 \\ 7 \end{pmatrix}
\begin{pmatrix} 2 & 4 \\ 6 & 8 \end{pmatrix} ~ 2\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
xy ~ \begin{vmatrix} x & 0 \\ 0 & y \end{vmatrix}
\frac{7}{12} ~ \frac{84}{144}
3 ~ \frac{12}{4}
\frac{73}{99} ~ 0.\overline{73}
"""


def test_what_is_left_to_do_is_not_paid(workers):
    graded = {
        (gold, question): grade_math(
            rf"\boxed{{{question}}}", gold, question=f"Find ${question}$.", workers=workers
        ).reason
        for gold, question in (line.split(" ~ ") for line in UNDONE.strip().splitlines())
    }
    assert {pair: reason for pair, reason in graded.items() if reason not in ("unevaluated", "wrong")} == {}
    assert sum(reason == "wrong" for reason in graded.values()) <= 2  # a matrix product is none to math-verify


def test_a_gold_that_leaves_as_much_to_do_is_answered_so(workers):
    for gold, answer in (
        (r"2^{1009}", r"2\cdot 2^{1008}"),
        (r"\frac{d}{dx} f(x)", r"\frac{d}{dx} f(x)"),
        (r"2x+3x", r"3x+2x"),
        (r"\sqrt{8}", r"2\sqrt{2}"),
        (r"x(x+1)", r"(1+x)x"),
        (r"\frac{84}{144}", r"\frac{7}{12}"),
    ):
        assert grade_math(rf"\boxed{{{answer}}}", gold, timeout=30, workers=workers).correct, gold


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
def test_adjacent_boxes_and_displays(response, gold, right, workers):
    assert grade_math(response, gold, timeout=30, workers=workers).correct is right
