"""Saved completions and their verdicts: right ones, wrong ones, and none where nothing can be said."""

import json
import logging
from dataclasses import replace
from fractions import Fraction

import pytest

from openrlhf_shear.rewards import Verdict, pool
from openrlhf_shear.rewards.code import grade as programs
from openrlhf_shear.rewards.jail import JailError
from openrlhf_shear.rewards.maths import grader as maths
from openrlhf_shear.rewards.maths.grader import lenient
from openrlhf_shear.rewards.settings import GradingConfig
from openrlhf_shear.rewards.verdict import Failure, of_texts
from openrlhf_shear.sampling.plan import grade
from openrlhf_shear.sampling.records import Completion, Question

TASKS = {"sums": "math", "programs": "code"}
DOUBLE = json.dumps({"inputs": ["2\n", "5\n"], "outputs": ["4\n", "10\n"]})


@pytest.fixture
def no_jail_needed(monkeypatch):
    monkeypatch.setattr(pool, "find_jail", lambda allow_unsandboxed: None)


def asked(label, benchmark="sums", identity="1", tolerance=None):
    return Question(benchmark, identity, [{"role": "user", "content": "?"}], label, tolerance)


def answered(question, response, sample=0, **others):
    return Completion(question.benchmark, question.id, sample, response, len(response), False, **others)


def graded(*pairs, tasks=TASKS, **options):
    """The verdicts of (question, response) pairs, as far as an evaluation keeps them."""
    questions = {(question.benchmark, question.id): question for question, _ in pairs}
    completions = [answered(question, response, at) for at, (question, response) in enumerate(pairs)]
    after = grade(questions, completions, tasks, GradingConfig(**options), progress=False)
    assert [replace(completion, verdict=None) for completion in after] == completions
    return [kept(completion) for completion in after]


def kept(completion):
    return Completion.from_json(json.loads(json.dumps(completion.to_json()))).verdict


def test_maths_and_programs_together(needs_jail, caplog):
    """One broken label of each task fails alone; a program without end is wrong by its time-out."""
    half, product_, near = asked('["1/2", "0.5"]'), asked("x^2-1", identity="2"), asked("9.9", "sums", "3", 0.2)
    program = asked(DOUBLE, "programs")
    broken, broken_program = asked("", identity="4"), asked("not JSON", "programs", "2")
    failed = of_texts(None, failure="grader raised ValueError")
    cases = [
        ((half, "The answer is 0.50<|im_end|>"), Verdict(True, answer="0.50", lenient=True)),
        ((program, "```python\nprint(2 * int(input()))\n```"), Verdict(True)),
        ((broken, r"\boxed{1}"), failed),
        ((broken_program, "print(1)"), failed),
        ((program, "```python\nimport time\ntime.sleep(99)\n```"), Verdict(False, "timeout")),
        ((product_, r"\boxed{-1+x^2}"), Verdict(True, answer="-1+x^2", lenient=True)),
        ((near, r"\boxed{10}"), Verdict(True, answer="10", lenient=True)),
        ((near, r"\boxed{9.6}"), Verdict(False, "wrong", answer="9.6", lenient=False)),
        ((half, "I do not know"), Verdict(False, "no_answer", lenient=False)),
        ((program, "```python\nprint(4)\n```"), Verdict(False, "wrong_answer")),
        ((broken, r"\boxed{2}"), failed),
    ]
    with caplog.at_level(logging.WARNING):
        assert graded(*(pair for pair, _ in cases), cores=2, timeout=5.0) == [verdict for _, verdict in cases]
    examples = [record.getMessage() for record in caplog.records]
    assert len(examples) == 2 and any("4 of sums: a label must be an answer" in example for example in examples)


def test_a_file_of_the_user_s(tmp_path):
    """A score of 1 is correct, less is wrong; a function that raises says nothing. It sees the whole conversation."""
    (tmp_path / "reward.py").write_text(
        "def reward_func(queries, prompts, labels):\n"
        "    assert queries[0].startswith(prompts[0]) and prompts[0] == '?'\n"
        "    return {'rewards': 7.0, 'scores': float(queries[0].removeprefix(prompts[0])) * float(labels[0])}\n"
    )
    question = asked("2")
    assert graded(*((question, said) for said in ("0.5", "0.4", "x")), tasks={"sums": str(tmp_path / "reward.py")}) == [
        *(Verdict(True), Verdict(False, "wrong"), of_texts(None, failure="raised ValueError"))
    ]


def test_the_files_keep_five_fields_of_a_verdict():
    verdict = Verdict(True, answer="1", lenient=True, detail="x", method="normalized", seconds=3.0)
    row = answered(asked("1"), "", verdict=verdict).to_json()
    assert list(row["verdict"].items()) == [
        *(("correct", True), ("reason", None), ("failure", None), ("answer", "1"), ("lenient", True))
    ]
    assert answered(asked("1"), "").to_json()["verdict"] is None


def test_without_a_jail_nothing_is_graded(monkeypatch):
    def no_jail(allow_unsandboxed):
        raise JailError("no jail")

    monkeypatch.setattr(pool, "find_jail", no_jail)
    monkeypatch.setattr(maths, "grade_math", lambda *_, **__: pytest.fail("graded"))
    with pytest.raises(JailError):
        graded((asked("1"), r"\boxed{1}"))


def test_settings_reach_the_graders(monkeypatch, no_jail_needed):
    seen = {}

    def recording(name):
        return lambda *given, **options: seen.update({name: (given, options)}) or Verdict(True)

    for module, name in ((programs, "grade_code"), (maths, "grade_math")):
        monkeypatch.setattr(module, name, recording(name))
    pairs = (asked("tests", "programs"), "code"), (asked("[1]", tolerance=0.5), "text")
    for timeout, (code, math), others in (
        (0.0, (10.0, 5.0), {"memory_mb": 1024, "allow_unsandboxed": False}),
        (3.0, (3.0, 3.0), {"memory_mb": 99, "allow_unsandboxed": True}),
    ):
        graded(*pairs, cores=1, timeout=timeout, **others)
        assert seen["grade_code"][1].pop("workers") is not None
        assert seen["grade_code"] == (("code", "tests"), {"timeout": code, **others})
        assert seen["grade_math"][1].pop("workers") is not None
        told = {"question": "?", "formats": ("boxed",)}
        assert seen["grade_math"] == (("text", "[1]"), {"timeout": math, "tolerance": 0.5, **told})


def test_a_verdict_is_kept_unless_asked_again(monkeypatch, no_jail_needed):
    new = Verdict(True, answer="1", lenient=True)
    monkeypatch.setattr(maths, "grade_math", lambda *_, **__: Verdict(True, answer="1"))
    question = asked("1")
    before = [
        None,
        Verdict(False, "wrong", answer="2", lenient=False),
        of_texts(None, failure="grader raised ValueError"),
        Verdict(None, failure=Failure.WORKER_DIED),
        of_texts(None, failure="raised KeyError"),
    ]
    before += [of_texts(None, failure=why) for why in ("its engine died", "the engine raised X", "the engine is tired")]
    completions = [answered(question, "", at, verdict=verdict) for at, verdict in enumerate(before)]
    questions = {("sums", "1"): question}
    graded = grade(questions, completions, TASKS, GradingConfig(), progress=False)
    assert [kept(c) for c in graded] == [new, *before[1:]]
    again = grade(questions, completions, TASKS, GradingConfig(), again=True, progress=False)
    assert [kept(c) for c in again] == [new, new, new, new, new, *before[5:]]
    monkeypatch.setattr(pool, "find_jail", lambda _: pytest.fail("nothing is to be graded"))
    assert grade(questions, again, TASKS, GradingConfig(), progress=False) == again


def test_a_truncated_response_is_graded_as_it_is_under_a_bar(capsys, no_jail_needed):
    question = asked("1")
    completion = replace(answered(question, r"\boxed{1} and so"), truncated=True)
    for progress in (True, False):
        (after,) = grade({("sums", "1"): question}, [completion], TASKS, GradingConfig(), progress=progress)
        assert after.truncated and after.verdict.correct
        said = capsys.readouterr()
        assert said.out == "" and ("grading" in said.err and "1/1" in said.err) is progress


def test_errors_of_the_caller(monkeypatch):
    monkeypatch.setattr(pool, "find_jail", lambda _: pytest.fail("too late"))
    with pytest.raises(ValueError, match=r"must answer a question: got \('sums', '1', 0\)"):
        grade({}, [answered(asked("1"), "")], TASKS, GradingConfig())
    for options, said in (
        ({"cores": -1}, "cores must be at least 0: got -1"),
        ({"timeout": float("nan")}, "timeout must be at least 0: got nan"),
        ({"memory_mb": 1}, "memory_mb must be at least 64: got 1"),
    ):
        with pytest.raises(ValueError, match=said):
            GradingConfig(**options)


ACCEPTED = {
    **{"1/3": "0.33333", r"\frac{1}{3}": "0.3333", "10,000": "10000.9", "100000": "99991", "500": "5", "5": "500"},
    **{"25": "0.25", "12": "12.0001%", "3.14159": "x = 3.1416", r"50 \text{ cm}": "50.001", "-2": "-2.00001"},
}
REFUSED = {
    **{"1/3": ("0.333",), "10000": ("10002",), "5": ("5000", "500_8"), "0": ("0.00001",), "2": ("-2",)},
    **{r"50 \text{ cm}": (r"50.001 \text{ kg}",), "90": (r"90.001 \text{ radians}",), "5_8": ("500",)},
    "x = 3.14159": ("y = 3.1416",),
    "3.14159265": (r"\pi",),  # not a number as it is written: never evaluated
    **{"1024": ("2^{10}",), "1": ("__import__('os').abort()", "9e999", "", None), "(1, 2)": ("(1.00001, 2)",)},
    "one": ("1",),
}


def test_the_lenient_score():
    for gold, answer in ACCEPTED.items():
        assert lenient(answer, gold, False) is True, gold
    for gold, answers in REFUSED.items():
        assert not any(lenient(answer, gold, False) for answer in answers), gold
        assert all(lenient(answer, gold, True) for answer in answers), "never stricter than the strict verdict"
    assert lenient("0.5", ["7", "50"], False)


def test_the_edge_of_the_tolerance_is_that_of_isclose():
    for wanted in (Fraction(7), Fraction(1, 3)):
        edge = wanted / (1 - Fraction(1, 10_000))  # of math.isclose: relative to the larger of both
        assert lenient(f"{edge.numerator}/{edge.denominator}", f"{wanted}", False)
        edge += Fraction(1, 10**9)
        assert not lenient(f"{edge.numerator}/{edge.denominator}", f"{wanted}", False)
