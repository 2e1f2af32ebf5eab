"""Responses as steps: their files, their groups, changed numbers, and the tokens of steps."""

import gzip
import json
import random
import re

import pytest
from benchmark_rows import DATA
from cases import cases
from offline_cases import OTHER, PROBLEM, RESPONSES, as_row, write_rows
from test_prm_steps import QWEN_WORDS, policy_tokenizer

from openrlhf_shear.data.files import DataError
from openrlhf_shear.lab.offline.reading import step_tokens
from openrlhf_shear.lab.offline.responses import Response, by_problem, changed, comparable, planted, read_responses

SOLVED = {
    "question": PROBLEM.replace(" ", "  "),
    "ground_truth": "3 + 4 = <<3+4=7>>7 pens\n\nA: 7",
    "6b": {"is_correct": False, "solution": "3 * 4 = <<3*4=12>>12\nA: 12"},
    "175b": {"is_correct": True, "solution": "A: 7"},
}


def test_all_forms_are_read(tmp_path):
    bench = {"id": "x", **as_row(RESPONSES[1])}
    bench["final_answer_correct"] = bench.pop("correct")
    unknown = {name: value for name, value in as_row(RESPONSES[3]).items() if name != "label"}
    plain = write_rows(tmp_path / "plain.jsonl", [as_row(RESPONSES[0]), unknown])
    zipped = tmp_path / "more.jsonl.gz"
    zipped.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in (bench, SOLVED)).encode()))
    read = read_responses([str(plain), str(zipped)])
    assert read[:3] == [RESPONSES[0], RESPONSES[3], RESPONSES[1]]
    question = SOLVED["question"]
    assert read[3:] == [
        Response(question, ("3 + 4 = 7 pens", "A: 7"), True, None),
        Response(question, ("3 * 4 = 12", "A: 12"), False, None),
        Response(question, ("A: 7",), True, None),
    ]
    (group,) = by_problem(read)
    assert len(group.responses) == 6 and group.is_mixed


@pytest.mark.parametrize(*cases("lab", "test_a_row_of_another_form_is_refused_in_a_line"))
def test_a_row_of_another_form_is_refused_in_a_line(tmp_path, change, said):
    row = {name: value for name, value in (as_row(RESPONSES[0]) | change).items() if value is not None}
    path = write_rows(tmp_path / "rows.jsonl", [as_row(RESPONSES[0]), row])
    with pytest.raises(DataError, match=re.escape(said)) as error:
        read_responses([str(path)])
    assert str(error.value).startswith(f"{path}: row 2 ") and "\n" not in str(error.value)


@pytest.mark.parametrize("broken", [{"solution": "a"}, {"solution": 1, "is_correct": True}])
def test_a_broken_solution_is_refused(tmp_path, broken):
    path = write_rows(tmp_path / "rows.jsonl", [SOLVED | {"175b": broken}])
    with pytest.raises(DataError, match="row 1 has a"):
        read_responses([str(path)])


def test_what_can_be_compared():
    groups = by_problem(RESPONSES)
    assert [group.problem for group in groups] == [0, 1, 2] and [len(group.responses) for group in groups] == [4, 3, 1]
    assert comparable(groups) == groups[:2] and comparable(groups, 1) == groups[:1]
    unmarked = [response for response in RESPONSES if not response.is_marked]
    for those in (unmarked, [RESPONSES[1]], [RESPONSES[1], RESPONSES[4]], RESPONSES[4:6]):
        with pytest.raises(ValueError, match="problems has both a right response and a wrong response that goes wrong"):
            comparable(by_problem(those))
    lucky = Response(PROBLEM, ("a", "b"), True, 1)
    assert not lucky.is_clean and not lucky.is_marked


def numbers(text: str) -> list[str]:
    return re.findall("[0-9]+", text)


@pytest.mark.parametrize("seed", range(20))
def test_one_number_behind_an_equals_sign_is_changed(seed):
    steps = ("x = 1", "y = 20, z = $305", "no number = here", "so \\(q = 4.5\\) and 6", "7")
    response = Response(PROBLEM, steps, True, -1)
    other = changed(response, random.Random(seed))
    assert other == changed(response, random.Random(seed))  # the seed decides
    assert (other.correct, other.problem) == (False, PROBLEM) and other.label in (1, 3)
    differ = [i for i, (old, new) in enumerate(zip(steps, other.steps, strict=True)) if old != new]
    assert differ == [other.label]
    old, new = steps[other.label], other.steps[other.label]
    assert re.sub("[0-9]+", "#", old) == re.sub("[0-9]+", "#", new) and len(old) == len(new)
    pairs = [pair for pair in zip(numbers(old), numbers(new), strict=True) if pair[0] != pair[1]]
    assert len(pairs) == 1 and pairs[0][0] in ("20", "305", "4") and (pairs[0][1][0] != "0" or len(pairs[0][1]) == 1)


def test_all_places_and_digits_are_drawn():
    response = Response(PROBLEM, ("x = 1", "y = 2", "z = 3"), True, -1)
    drawn = [changed(response, random.Random(seed)) for seed in range(200)]
    assert {each.steps for each in drawn} == {
        (("x = 1", f"y = {i}", "z = 3") if place == 1 else ("x = 1", "y = 2", f"z = {i}"))
        for place in (1, 2)
        for i in range(10)
        if i != place + 1
    }
    assert changed(Response(PROBLEM, ("x = 1", "2", "= x"), True, -1), random.Random(0)) is None


def test_what_is_planted():
    groups = by_problem([*RESPONSES, Response(OTHER, ("It is 7.",), True, None)])
    pairs = planted(groups, 0, 9)
    assert [(pair.group, pair.at) for pair in pairs] == [(groups[0], 0), (groups[1], 0)]
    assert pairs == planted(groups, 0, 9) and planted(groups, 0, limit=1) == pairs[:1]
    assert any(planted(groups, seed, 9) != pairs for seed in range(1, 9))
    assert planted(by_problem(RESPONSES[4:]), 0, 9) == []  # no other right response


@pytest.mark.parametrize(
    ("words", "corpus"),
    [
        (QWEN_WORDS, "So x is one.\n\nThen two\n\nAnd so on.\n\n\n"),
        (QWEN_WORDS, ""),  # a token a byte
        ("(?!)", "is 1.\n\nSo y"),  # tokens reach over the ends of steps
    ],
)
def test_tokens_of_steps_of_a_byte_pair_tokenizer(words, corpus):
    tokenizer = policy_tokenizer(words, corpus)
    response = Response(PROBLEM, ("x is 1.", "So y is 1.", "T\u00e4\u20ac is 1.", "1."), True, -1)
    encoded = tokenizer(response.text, add_special_tokens=False, return_offsets_mapping=True)
    found = step_tokens(encoded["offset_mapping"], response.step_starts)
    ids, expected = encoded["input_ids"], []
    for k in range(len(response.steps)):
        before = "\n\n".join(response.steps[:k]) + ("\n\n" if k else "")
        within = len(before.encode())  # the first token that ends behind this byte holds the step's first character
        ends = [len(b"".join(map(raw(tokenizer), ids[: i + 1]))) for i in range(len(ids))]
        expected.append(next(i for i, end in enumerate(ends) if end > within))
    assert found == expected and found[0] == 0
    reaches = [ends[i] - len(raw(tokenizer)(ids[i])) for i in found]  # first byte of each step's first token
    starts = [len(response.text[:start].encode()) for start in response.step_starts]
    assert all(reach <= start for reach, start in zip(reaches, starts, strict=True))
    assert (reaches != starts) == (words == "(?!)")  # a boundary lies inside a token


def raw(tokenizer):
    """Return the function from a token's id to its bytes."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    byte_of = {sign: byte for byte, sign in bytes_to_unicode().items()}
    return lambda i: bytes(byte_of[sign] for sign in tokenizer.convert_ids_to_tokens(i))


def test_a_step_may_have_no_token():
    assert step_tokens([(0, 5)], [0, 3, 4]) == [0, 0, 0] and step_tokens([], [0]) == [0]


@pytest.mark.skipif(not (DATA / "processbench").is_dir(), reason="ProcessBench is not on this machine")
@pytest.mark.parametrize(
    ("name", "mixed", "late"),
    [("gsm8k", 23, 167), ("math", 45, None), ("olympiadbench", 209, None), ("omnimath", 49, None)],
)
def test_published_responses(name, mixed, late):
    read = read_responses([str(DATA / "processbench" / f"{name}.jsonl.gz")])
    groups = by_problem(read)
    assert sum(group.is_mixed for group in groups) == mixed
    if late:
        solved = read_responses([str(DATA / "grade_school_math/example_model_solutions.jsonl.gz")])
        groups = comparable(by_problem([*read, *solved]))
        marked = [each for group in groups for each in group.responses if each.is_marked]
        assert sum(each.label > 0 for each in marked) == late == len(groups)
        assert sum("<<" in each.text for each in solved) == 5  # texts that end within an annotation
