"""LiveCodeBench's rows: months, packed tests, and refusals."""

import base64
import json
import os
import pickle
import zlib

import pytest
from benchmark_rows import DATA, FUNCTION, STDIN, load

from openrlhf_shear.data.files import DataError
from openrlhf_shear.rewards.code import grade_code
from openrlhf_shear.rewards.code import tests_of as read_tests
from openrlhf_shear.sampling import livecodebench, prompts


def packed(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


@pytest.mark.parametrize("pack", [lambda text: text, packed], ids=["json", "pickle"])
def test_tests_round_trip(pack):
    read = {}
    for row in (STDIN, FUNCTION):
        text, kind = livecodebench.label(row | {"private_test_cases": pack(row["private_test_cases"])})
        read[kind] = read_tests(text)
    assert (read["stdin"].inputs, read["stdin"].outputs) == (("1 2\n", "4 5\n"), ("3\n", "9\n"))
    assert read["function"].name == "swap"
    assert read["function"].arguments == (([1, 2], "a\u2028b"), ([3, 4], ""))
    assert read["function"].accepted == (([2, 1],), ([4, 3],))


@pytest.mark.parametrize(
    ("output", "right", "wrong"),
    [("[5]", [5], 5), ('"5"', "5", 5), ("5", 5, "5"), ("[[1]]", [[1]], [1]), ("null", None, "null"), ("[]", [], None)],
)
def test_a_result_is_taken_as_its_value_alone(output, right, wrong):
    case = json.dumps([{"input": "1", "output": output, "testtype": "functional"}])
    row = FUNCTION | {"public_test_cases": case, "private_test_cases": "[]"}
    (accepted,) = read_tests(livecodebench.label(row)[0]).accepted
    assert right in accepted and wrong not in accepted


def test_programs_are_graded_by_these_tests(needs_jail):
    verdict = grade_code("a, b = map(int, input().split())\nprint(a + b)", livecodebench.label(STDIN)[0], extract=False)
    assert verdict.correct, verdict
    swap = FUNCTION["starter_code"].replace("List[int]", "list") + "return pair[::-1]\n"
    assert grade_code(swap, livecodebench.label(FUNCTION)[0], extract=False).correct
    verdict = grade_code(swap.replace("[::-1]", ""), livecodebench.label(FUNCTION)[0], extract=False)
    assert verdict.reason == "wrong_answer"


class _Runs:
    def __init__(self, call, *given):
        self.call, self.given = call, given

    def __reduce__(self):
        return self.call, self.given


@pytest.mark.parametrize("call", [os.system, eval, getattr, len], ids=lambda call: call.__name__)
def test_a_pickle_that_imports_is_refused(tmp_path, call):
    marker = tmp_path / "ran"
    row = STDIN | {"private_test_cases": packed(_Runs(call, f"__import__('pathlib').Path({str(marker)!r}).touch()"))}
    with pytest.raises(DataError, match=rf"asks for \w+\.{call.__name__}, which could run anything"):
        livecodebench.label(row)
    with pytest.raises(DataError, match=r"row 1 of .* cannot be used: private_test_cases hold a pickle that asks for"):
        load(tmp_path, "livecodebench", row)
    assert not marker.exists()


def test_a_bomb_is_refused(monkeypatch):
    bomb = packed("a" * 3_000_000)
    assert len(bomb) < 10_000
    assert len(livecodebench.unpacked(bomb)) == 3_000_000
    with pytest.raises(DataError, match="cannot be unpacked: they grow beyond 1000000 bytes"):
        livecodebench.unpacked(bomb, limit=1_000_000)
    assert livecodebench.MAX_BYTES == 512 << 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no base64!", "must be JSON, or base64 of zlib of a pickle"),
        (base64.b64encode(b"no zlib").decode(), "must be JSON, or base64 of zlib of a pickle"),
        (base64.b64encode(zlib.compress(pickle.dumps("[]" * 99))[:-6]).decode(), "they end early"),
        (base64.b64encode(zlib.compress(b"no pickle")).decode(), "a broken pickle: "),
        (packed(["[]"]), "must hold a text: got list"),
    ],
)
def test_broken_private_tests_are_refused(text, message):
    with pytest.raises(DataError, match=message):
        livecodebench.unpacked(text)


def test_only_february_to_may_2025_is_asked(tmp_path):
    dates = {"a": "2025-01-31T23:00:00", "b": "2025-02-01", "c": "2025-05-31 00:00:00", "d": "2025-06-01"}
    rows = [STDIN | {"question_id": name, "contest_date": date} for name, date in dates.items()]
    rows[0] |= {"private_test_cases": "not even read"}
    assert [question.id for question in load(tmp_path, "livecodebench", *rows, FUNCTION)] == ["b", "c", "3001"]


@pytest.mark.skipif(not (DATA / "livecodebench").is_dir(), reason="the row of LiveCodeBench is not on this machine")
def test_a_real_row_of_livecodebench(needs_jail):
    row = json.loads((DATA / "livecodebench" / "lcb_sample_row.jsonl").read_text())
    text, kind = livecodebench.label(row)
    assert (kind, len(read_tests(text))) == ("stdin", 5)
    program = "for _ in range(int(input())):\n    print('NO' if input() in ('bca', 'cab') else 'YES')\n"
    assert grade_code(program, text, extract=False).correct
    assert not livecodebench.in_window(row)
    assert row["question_content"] in prompts.livecodebench(row)
