"""The command that shows whether the rewards hold here: a slice of each of its checks."""

import json

import pytest

from openrlhf_shear.cli import check_rewards
from openrlhf_shear.rewards.jail import JailError, find_jail
from openrlhf_shear.rewards.malformed import CODE, MATHS, malformed


@pytest.fixture(autouse=True)
def needs_a_jail():
    try:
        find_jail()
    except JailError as error:
        pytest.skip(str(error))


def run(capsys, *words) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        check_rewards.main([*words])
    return ended.value.code, capsys.readouterr().out


def test_ten_thousand_responses_have_every_kind():
    samples = list(malformed(10_000))
    assert len(samples) == 10_000
    assert {sample.kind for sample in samples} == {*MATHS, *CODE}
    assert malformed(50, seed=3).__class__ and list(malformed(50, seed=3)) == list(malformed(50, seed=3))


def test_a_slice_of_malformed_responses(capsys, tmp_path):
    code, out = run(capsys, "malformed", "--count", "330", "--timeout", "1", "--output", str(tmp_path / "found.json"))
    found = json.loads((tmp_path / "found.json").read_text())
    assert code == 0 and "it holds" in out, out
    assert found["summary"] == {
        **{"responses": 330, "good": 17},
        **dict.fromkeys(("lost", "correct", "failed", "good_wrong", "stalled"), 0),
    }
    assert sum(row["responses"] for row in found["rows"]) == 330
    assert {row["kind"] for row in found["rows"]} == {*MATHS, *CODE}


def test_a_grader_that_is_fooled_or_loses_a_response_is_noticed(capsys, monkeypatch):
    from openrlhf_shear.rewards.graded import Graded
    from openrlhf_shear.rewards.pool import RewardPool

    monkeypatch.setattr(RewardPool, "grade_all", lambda self, samples: [Graded(1.0, 1.0) for _ in samples])
    code, out = run(capsys, "malformed", "--count", "20")
    assert code == 1 and "correct 20" in out and "IT DOES NOT HOLD" in out
    monkeypatch.setattr(RewardPool, "grade_all", lambda self, samples: [Graded(reason="timeout") for _ in samples])
    code, out = run(capsys, "malformed", "--count", "20")
    assert code == 1 and "failed 20" in out


def test_escapes(capsys):
    code, out = run(capsys, "escapes")
    assert code == 0 and "it holds" in out and "seccomp: socket" in out and "WORKED" not in out, out


def test_gold_answers_and_solutions(capsys, tmp_path):
    rows = [{"problem": f"{n}?", "answer": f"\\frac{{{n}}}{{7}}"} for n in (1, 2, 3)]
    (tmp_path / "math500").mkdir()
    (tmp_path / "math500" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out = run(capsys, "gold", "--data-dir", str(tmp_path))
    assert code == 0 and "math500" in out and "3 normalized" in out, out


def test_a_folder_without_benchmarks_is_refused(capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        check_rewards.main(["gold", "--data-dir", str(tmp_path)])
    assert ended.value.code == 1 and "no benchmark found" in capsys.readouterr().err
