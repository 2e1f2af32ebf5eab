"""The benchmark of agreement: golds by problem, counts by label, and the cases to read."""

import json
from pathlib import Path

import agreement
import pytest
from near_mutants import mutant, near

pytestmark = pytest.mark.usefixtures("needs_jail")


ROOT = Path(__file__).parents[3]


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
    labels = [case.right for case in cases]
    assert [case.id for case in agreement.disagreements(cases, ours, labels)] == ["b", "c"]


def test_the_page_says_what_the_results_say():
    results, page = ROOT / "benchmarks/results", " ".join((ROOT / "docs/rewards.md").read_text().split())
    peers = json.loads((results / "agreement_peers.json").read_text())
    for row in [*peers["pairs"], *peers["programs"]]:
        cells = [str(row.get(name, "")) for name in ("source", "n", "agree", "ours wrong", "theirs wrong")]
        choice = f" {row['documented choice']} |" if "documented choice" in row else " |"
        assert row["source"] == "all" or f"| {' | '.join(cells)} |{choice}" in page
    rows = json.loads((results / "rewards_near.json").read_text())["rows"]
    for styles, words in ((False, "golds with one change {wrong} are paid"), (True, "golds in a style, {wrong} are")):
        chosen = [row for row in rows if row["graded"].startswith("style") == styles]
        wrong = sum(len(row["others"]) for row in chosen)
        assert f"{sum(row['count'] for row in chosen):,} {words.format(wrong=wrong)}" in page
    speed = json.loads((results / "rewards_cpu.json").read_text())
    times = [f"{row['times']:.2f} times" for row in speed["maths"][1:]]
    fresh = [f"{row['times fresh']:.1f} (" for row in speed["code"]]
    assert [text for text in (*times, *fresh) if text not in page] == []


def test_near_mutants_are_not_paid_and_styles_are(tmp_path):
    assert mutant("(1,2)", "a tuple in another order", 0) == "(2,1)"
    assert mutant(r"\frac{1}{2}", "a denominator", 0) == r"\frac{1}{3}" and mutant("7", "no root", 0) is None
    (tmp_path / "math500").mkdir()
    write(tmp_path / "math500/test.jsonl", {"answer": "(1,2)"}, {"answer": r"\frac{1}{2}"}, {"answer": "-0"})
    rows = {row["graded"]: row for row in near(tmp_path, 1, None)}
    assert (rows["no minus"]["count"], rows["no minus"]["others"]) == (1, [("-0", r"\boxed{0}")])
    assert sum(len(row["others"]) for row in rows.values()) == 1 and rows["style: tags"]["count"] == 3
