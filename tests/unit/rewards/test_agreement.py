"""The benchmark of agreement: golds by problem, counts by label, and the cases to read."""

import json
from pathlib import Path

import agreement
import pytest

pytestmark = pytest.mark.usefixtures("needs_jail")


def write(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def read(tmp_path):
    golds = write(
        tmp_path / "golds.jsonl",
        {"question": "What is $1+1$?", "answer": "1 + 1 = 2\n#### 2"},
        {"problem": "Expand.", "solution": r"It is $\boxed{x^2+x}$."},
        {"question": "How long?", "final_answer": ["4.2"], "error": "0.1"},
    )
    responses = write(
        tmp_path / "some.jsonl",
        {"id": "a", "problem": "What is 1 + 1?", "steps": ["1 + 1", r"\boxed{2}"], "final_answer_correct": True},
        {"id": "b", "problem": "What is 1 + 1?", "steps": [r"\boxed{2}"], "final_answer_correct": False},
        {"id": "c", "question": "Expand.", "solution": r"\boxed{x(x+1)-x}", "is_correct": True},
        {"problem": "How long?", "response": r"\boxed{4.3}", "correct": True},
        {"problem": "How long?", "response": "4.2", "correct": True},
        {"problem": "Unknown?", "response": r"\boxed{1}", "correct": True},
    )
    return agreement.read_cases([responses], agreement.read_golds([golds]))


def test_golds_are_found_by_the_text_of_the_problem_and_disagreements_counted(read):
    cases, missing = read
    assert missing == 1
    assert [(case.id, case.gold, case.tolerance, case.right) for case in cases] == [
        *(("a", "2", None, True), ("b", "2", None, False), ("c", "x^2+x", None, True)),
        *(("some-3", "4.2", 0.1, True), ("some-4", "4.2", 0.1, True)),
    ]
    ours = agreement.graded(cases, 1, ("boxed",))
    assert [(correct, reason) for correct, reason, _ in ours] == [
        *((True, None), (True, None), (False, "wrong"), (True, None), (False, "no_answer"))
    ]
    theirs = [True, False, True, None, True]
    (row, everything) = agreement.rows_of(cases, ours, theirs)
    assert row | {"source": "all"} == everything
    assert (row["responses"], row["no answer"], row["right"], row["wrong"]) == (5, 1, 3, 1)
    assert (row["right: ours refused"], row["wrong: ours paid"]) == (1, 1)
    assert (row["right: math-verify refused"], row["wrong: math-verify paid"]) == (1, 0)
    classes = agreement.classes_of(cases, ours, theirs, {"b": {"class": "label", "reason": "equals the gold"}})
    assert classes == [
        {"grader": "ours", "label": 1, "policy": 0, "fault": 0, "not read": 1},
        {"grader": "math-verify", "label": 0, "policy": 0, "fault": 0, "not read": 1},
    ]
    read_again = [case.id for case in agreement.disagreements(cases, ours, theirs)]
    assert read_again == ["b", "c", "some-3"]
