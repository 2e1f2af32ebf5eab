"""`shear-data --check` drops golds that are not graded right, and labels that are no answer alone."""

import json

import pytest
from test_prepare_data import MATHS, STDIN, counts, prepare, questions

from openrlhf_shear.data.checks import gold_graded
from openrlhf_shear.data.sources import Dropped, ReadProblem
from openrlhf_shear.rewards import maths
from openrlhf_shear.rewards.labels import doubt
from openrlhf_shear.rewards.verdict import Verdict


def test_check_drops_golds_that_are_not_graded_correct(tmp_path, monkeypatch):
    asked = []

    def grade(*words):
        asked.append(words)
        return Verdict(False, "unparsable") if words[1] == "4" else Verdict(True)

    monkeypatch.setattr(maths, "grade_math", grade)
    rows, report = prepare(tmp_path, MATHS, "--check")
    assert asked == [(rf"The answer is \boxed{{{gold}}}.", gold) for gold in (r"\frac{4}{2}", "4")]
    assert questions(rows) == ["What is 1 + 1?"]
    assert report["dropped"]["gold_not_graded"]["detail"] == "4: unparsable"
    with pytest.raises(Dropped):
        gold_graded(ReadProblem("p", '["1", "4"]', "answer"))  # each of several golds is asked
    asked.clear()
    gold_graded(ReadProblem("p", json.dumps(STDIN), "stdin"))
    assert not asked  # tests have no gold
    monkeypatch.undo()
    for gold in ("}{", "$$"):
        with pytest.raises(Dropped, match="gold_not_graded"):
            gold_graded(ReadProblem("p", gold, "answer"))


DOUBTFUL = {
    "null": ("nan", "null", "None", "N/A", "undefined", "NULL"),
    "words": ("34 apples", "$34 profit", "12 blue boxes.", "3 girls", "7 years old", "1,200 tickets"),
    "sentence": ("The answer is 34", "She has 34 apples left", "It is $x=34$ here then 2", "There are 5 ways",
                 "We find that 34 works", "x is equal to 34"),
    "list": ("['34', '68/2']", '["1", 2,]', "['a']", "['34']", "[ '1', '2' ]", "[34, '68/2']"),
}  # fmt: skip
PLAIN = ("34", "34 cm", r"34 \text{ apples}", "even", "Evelyn", "12 and 13", "[1, 2]", "[34, 68)", "(1,2)", "5 feet",
         r"x=2k \text{ where } k\in\mathbb{Z}", "no solution", "90 degrees", "-1", "B", "25 percent")  # fmt: skip


def test_labels_that_are_no_answer_alone_are_named():
    assert {text: doubt(text) for kind in DOUBTFUL for text in DOUBTFUL[kind]} == {
        text: kind for kind in DOUBTFUL for text in DOUBTFUL[kind]
    }
    assert {text: doubt(text) for text in PLAIN} == dict.fromkeys(PLAIN)


@pytest.mark.usefixtures("needs_jail")
def test_check_drops_doubtful_labels(tmp_path):
    labels = ["34", "nan", "null", "34 apples", "The answer is 34", "['34', '68/2']", '["1", "nan"]']
    found = [{"q": f"Why {i}?", "a": label} for i, label in enumerate(labels)]
    words = ("--prompt-key", "q", "--label-key", "a", "--check")
    rows, report = prepare(tmp_path, found, *words, source="columns")
    expected = {"doubtful_null": 3, "doubtful_words": 1, "doubtful_sentence": 1, "doubtful_list": 1}
    assert [row["label"] for row in rows] == ["34"] and counts(report) == expected
    assert report["dropped"]["doubtful_words"] == {"rows": 1, "row": 4, "detail": "34 apples"}
