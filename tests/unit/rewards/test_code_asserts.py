"""Tests made of Python code: what they may use of a response, and tricks that must not fool them."""

import pytest

from openrlhf_shear.rewards import Verdict, grade_code

pytestmark = pytest.mark.usefixtures("needs_jail")

REFERENCE = """
def total(items):
    return sum(items)
"""


def grade(code: str, *tests: str, setup: str = "", **options) -> Verdict:
    label = {"test_list": [*tests], "test_setup_code": setup}
    return grade_code(code, label, timeout=20.0, extract=False, stop_at_failure=False, **options)


# --- arguments ---


@pytest.mark.parametrize(
    "test",
    [
        "for inp in [[1, 2], [3]]:\n    assert add(inp) == total(inp)",
        "given = [1, 2]\ngot = add(given)\nassert got == total(given)",
        "given = [1, 2]\nassert add(given) == total(given)",
        "given = [[1, 2]]\nassert add(*given) == total(*given)",
        "given = [1, 2]\nassert add(items=given) == sum(given)",
        "def check(got, wanted):\n    assert got == wanted\ngiven = [1, 2]\ncheck(add(given), total(given))",
    ],
)
def test_a_response_cannot_empty_the_arguments_of_the_reference(test: str):
    setup = REFERENCE
    cheat = "def add(items):\n    items.clear()\n    return 0"
    assert grade(cheat, test, setup=setup).reason == "wrong_answer"
    assert grade("def add(items):\n    got = sum(items)\n    items.clear()\n    return got", test, setup=setup).correct


@pytest.mark.parametrize(
    ("response", "test"),
    [
        ("def order(x): x.sort()", "items = [3, 1, 2]\norder(items)\nassert items == [1, 2, 3]"),
        ("def order(x): x.sort()", "items = [3, 1]\nrest = order(items)\nassert rest is None and items == [1, 3]"),
        ("def first(x):\n    del x[1:]\n    return 1", "x = [7, 7]\nk = first(x)\nassert x[:k] == [7] and len(x) == 1"),
        ("def put(d, s): d['a'] = 1; s.add(2)", "d, s = {}, set()\nput(d, s=s)\nassert d == {'a': 1} and s == {2}"),
        ("class Box:\n    def fill(self, x): x.append(1)", "x = []\nBox().fill(x)\nassert x == [1]"),
        ("def order(x): x.sort()", "def check():\n    x = [2, 1]\n    order(x)\n    assert x == [1, 2]\ncheck()"),
    ],
)
def test_changes_in_place_are_seen_where_a_test_asks_for_them(response: str, test: str):
    assert grade(response, test).correct
    assert not grade(response.replace(".sort()", ".copy()").replace("del x", "x").replace("= 1;", "== 1 if d else 1;")
                     .replace(".append(1)", ".copy()"), test).correct  # fmt: skip


def test_a_builtin_is_called_as_ever_where_a_change_could_be_asked_for():
    assert grade("def f(x): return x", "x = [2, 1]\nx.sort()\nprint(x)\ny = sorted(x)\nassert f(y[0]) == x[0]").correct


# --- objects of the response ---

OTHERWISE = """
class Odd:
    def __init__(self): self.asked = 0
    def count(self):
        self.asked += 1
        return self.asked
    def __len__(self): return 3 if self.count() % 2 else 4
    def __bool__(self): return bool(self.count() % 2)
    def __str__(self): return str(self.count())
    def __getitem__(self, at): return self.count()
    def __iter__(self): return iter([self.count()])
    def __getattr__(self, name):
        if name == 'asked': raise AttributeError(name)
        return self.count()
class Box:
    n = 0
    @property
    def inner(self): return Inner()
    def __getitem__(self, at): return Inner()
    def __iter__(self): return iter([Inner()])
class Inner:
    @property
    def value(self):
        Box.n += 1
        return Box.n
odd, box = Odd(), Box()
"""


@pytest.mark.parametrize(
    "test",
    [
        "assert len(odd) == 3 and len(odd) == 4",
        "assert odd and not odd",
        "assert str(odd) != str(odd)",
        "assert odd[0] != odd[0]",
        "assert odd.size != odd.size",
        "assert len(odd) == 3\nassert [*odd] == [2]\nassert [*odd] == [3]",
        "assert sorted(odd) == [1] and max(odd) == 2",
        "assert box.inner.value != box.inner.value",
        "assert box[0].value != box[0].value",
        "assert [x.value for x in box] != [x.value for x in box]",
        "try:\n    odd[0] + odd[0]\nexcept Exception:\n    pass",
    ],
)
def test_an_object_that_answers_in_two_ways_is_refused(test: str):
    verdict = grade(OTHERWISE, test)
    assert verdict.correct is False and verdict.reason in ("wrong_answer", "error"), verdict
    assert "in two ways" in verdict.detail


@pytest.mark.parametrize(
    ("response", "test"),
    [
        ("def count():\n    n = 0\n    while True:\n        yield n\n        n += 1",
         "got = count()\nassert [next(got), next(got)] == [0, 1]\nfor n in got:\n    if n > 3: break\nassert n == 4"),
        ("def three(): yield from (1, 2, 3)", "got = three()\nassert [*got] == [1, 2, 3] and [*got] == []"),
        ("class Up:\n    def __iter__(self):\n        self.n = 0\n        return self\n    def __next__(self):\n"
         "        self.n += 1\n        if self.n > 2: raise StopIteration\n        return self.n",
         "up = Up()\nassert [*up] == [1, 2] and sum(up) == 3 and max(up) == 2"),
        ("class Once:\n    n = 0\n    def __iter__(self): return self\n    def __next__(self):\n"
         "        self.n += 1\n        if self.n > 2: raise StopIteration\n        return self.n",
         "once = Once()\nassert [*once] == [1, 2] and [*once] == []"),
        ("class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
         "    def __len__(self): return len(self.items)\n    def __bool__(self): return bool(self.items)",
         "s = Stack()\nassert len(s) == 0 and not s\ns.push(1)\nassert len(s) == 1 and s\ns.push(2)\nassert len(s)"),
        ("class S:\n    x = []\n    def put(self):\n        self.x = [1]\n        raise ValueError",
         "s = S()\nassert not s.x\ntry:\n    s.put()\nexcept ValueError:\n    pass\nassert s.x == [1]"),
        ("class Point: pass", "p = Point()\np.x = 1\nassert p.x == 1\np.x = 2\nassert p.x == 2"),
        ("class Node:\n    def __init__(self): self.all = [Leaf()]\nclass Leaf: pass\n",
         "n = Node()\nassert [leaf.__str__() for leaf in n.all]\nassert len(n.all) == 1 and len(n.all) == 1"),
        ("def nan(): return [float('nan')]\nclass N:\n    x = float('nan')", "n = N()\nassert n.x != n.x and n.x != 1"),
    ],
)  # fmt: skip
def test_objects_that_change_for_a_reason_are_not_refused(response: str, test: str):
    verdict = grade(response, test)
    assert verdict.correct, verdict


@pytest.mark.parametrize("kind", ["StopIteration", "StopAsyncIteration", "GeneratorExit", "Mine"])
@pytest.mark.parametrize(
    "test",
    [
        "assert all(map(f, [1, 2]))",
        "for given, got in zip([1, 2], map(f, [1, 2])): assert got == 2 * given",
        "assert [*map(f, [1, 2])] == []",
        "assert not any(f(x) for x in [1, 2])",
        "assert [*map(Odd().method, [1])] == []",
        "assert [*map(len, [Odd()])] == []",
        "assert [*map(str, [Odd()])] == []",
        "assert [*map(bool, [Odd()])] == []",
        "assert [*map(list, [Odd()])] == []",
        "assert [*map(lambda odd: odd.size, [Odd()])] == []",
        "assert [*map(lambda odd: odd[0], [Odd()])] == []",
        "import asyncio\nasync def items():\n    yield f(1)\nasync def go(): return [x async for x in items()]\n"
        "assert asyncio.run(go()) == []",
    ],
)
def test_an_exception_of_a_response_ends_no_loop_of_a_test(kind: str, test: str):
    response = f"""
class Mine(StopIteration): pass
def f(x): raise {kind}
class Odd:
    method = size = property(lambda self: f(0))
    def __len__(self): raise {kind}
    __str__ = __bool__ = __iter__ = __len__
    def __getitem__(self, at): raise {kind}
"""
    verdict = grade(response, test)
    assert (verdict.correct, verdict.reason) == (False, "error"), verdict
    assert kind in verdict.detail


def test_an_iterator_of_a_response_ends_as_ever():
    response = "class Two:\n    n = 0\n    def __iter__(self): return self\n    def __next__(self):\n"
    response += "        self.n += 1\n        if self.n > 2: raise StopIteration\n        return self.n\n"
    response += "def two(): yield from (1, 2)\ndef none():\n    raise StopIteration\n    yield"
    assert grade(response, "assert [*two()] == [*Two()] == [1, 2] and next(two()) == 1").correct
    assert not grade(response, "assert [*none()] == []").correct, "Python makes that a RuntimeError"


def test_an_endless_container_is_refused():
    response = "class All:\n    def __iter__(self):\n        while True: yield 1"
    assert "must end within" in grade(response, "assert [*All()]").detail


MBPP_PLUS = """
def assertion(out, exp, atol):
    if isinstance(out, bool):
        exact_match = out == exp
    else:
        exact_match = exp == (out is not None)


for inp, exp in zip([['ab'], ['b']], [True, False]):
    assertion(starts_a(*inp), exp, 0)
"""


def test_tests_of_mbpp_plus_that_assert_nothing_are_mended():
    """Mbpp/737, 787 and 794 in the hub's layout: any program passed, one that returns None as well."""
    label = {"test_list": ["assert starts_a('ab')"], "test": MBPP_PLUS}
    head = "import re\ndef starts_a(text): return "
    for right in ("re.search('^a', text)", "bool(re.search('^a', text))", "text[:1] == 'a' or None"):
        assert grade_code(head + right, label, extract=False).correct
    for wrong in ("None", "True", "False", "re.search('^b', text)"):
        assert grade_code(head + wrong, label, extract=False).reason == "wrong_answer"


# --- names ---


@pytest.mark.parametrize(
    ("cheat", "test"),
    [
        ("class math:\n    isclose = staticmethod(lambda *a: True)", "assert math.isclose(f(3), 6)"),
        ("def isclose(*a): return True", "assert isclose(f(3), 6)"),
        ("class Counter:\n    def __new__(cls, *a): return 0", "assert Counter([f(3)]) == Counter([6])"),
        ("def all(x): return True", "assert all(f(x) == 2 * x for x in [3])"),
        ("def permutations(x): return [[0]]", "assert f(3) in [p[0] for p in permutations([6])]"),
        ("class collections:\n    Counter = staticmethod(len)", "assert collections.Counter([f(3)]) == {6: 1}"),
    ],
)
def test_what_the_tests_use_of_python_is_python_s(cheat: str, test: str):
    assert grade(f"{cheat}\ndef f(x): return 2 * x", test).correct
    assert not grade(f"{cheat}\ndef f(x): return 0", test).correct


@pytest.mark.parametrize(
    ("response", "test"),
    [
        ("def gcd(a, b): return 7", "assert gcd(2, 4) == 7"),
        ("def sum(a, b): return a + 2 * b", "assert sum(1, 2) == 5"),
        ("class Counter:\n    def up(self): return 7", "assert Counter().up() == 7"),
        ("def permutations(x): return 7", "import math\nassert math.isclose(permutations([6]), 7)"),
    ],
)
def test_what_is_under_test_may_have_a_name_of_python_s(response: str, test: str):
    assert grade(response, test).correct


# --- prompts ---


@pytest.mark.parametrize("docstring", ["", "    '''Double it.'''\n"])
@pytest.mark.parametrize("head", ["def double(x):\n", "class A:\n    pass\n\n\ndef double(x: int) -> int:\n\n"])
def test_a_prompt_needs_no_docstring(head: str, docstring: str):
    test = "def check(candidate):\n    assert candidate(3) == 6\n"
    label = {"prompt": head + docstring, "entry_point": "double", "test": test}
    for response in ("    return 2 * x", "def double(x):\n    return 2 * x"):
        verdict = grade_code(response, label, timeout=20.0, extract=False)
        assert verdict.correct, verdict
        assert not grade_code(response.replace("2", "3"), label, timeout=20.0, extract=False).correct
