"""The checks of the graders (`benchmarks/check_rewards.py`): a slice of each, and graders that must not pass."""

import json
from pathlib import Path

import check_rewards
import gold_answers
import pytest
from gold_programs import SETS, canonical
from malformed_responses import CODE, MATHS, malformed

from openrlhf_shear.rewards import Verdict, grade_code
from openrlhf_shear.rewards.pool import RewardPool

DATA = Path(__file__).parents[3].parent / "shared" / "data"

pytestmark = pytest.mark.usefixtures("needs_jail")


def needs(folder: str):
    return pytest.mark.skipif(not (DATA / folder).is_dir(), reason=f"{DATA / folder} is not there")


def run(capsys, *words) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        check_rewards.main([*words])
    return ended.value.code, *capsys.readouterr()


def write_lines(folder: Path, *lines: str) -> None:
    folder.mkdir()
    (folder / "test.jsonl").write_text("\n".join(lines), encoding="utf-8")


def test_ten_thousand_responses_have_every_kind():
    samples = list(malformed(10_000))
    assert len(samples) == 10_000
    assert {sample.kind for sample in samples} == {*MATHS, *CODE}
    assert list(malformed(50, seed=3)) == list(malformed(50, seed=3)) != list(malformed(50, seed=4))


def test_a_slice_of_malformed_responses(capsys, tmp_path):
    path = tmp_path / "report.json"
    code, out, _ = run(capsys, *f"malformed --count 100 --timeout 0.5 --cores 1 --output {path}".split())
    report = json.loads(path.read_text())
    assert code == 0 and "it holds" in out, out
    assert report["summary"] == {
        **{"responses": 100, "good": 6},
        **dict.fromkeys(("lost", "correct", "failed", "good_wrong", "stalled"), 0),
    }
    assert sum(row["responses"] for row in report["rows"]) == 100


def test_a_grader_that_is_fooled_or_loses_a_response_is_noticed(capsys, monkeypatch):
    for verdict, said in ((Verdict(True), "correct 20"), (Verdict(None, failure="timeout"), "failed 20")):
        monkeypatch.setattr(RewardPool, "grade_all", lambda self, samples, verdict=verdict: [verdict for _ in samples])
        code, out, _ = run(capsys, "malformed", "--count", "20")
        assert code == 1 and said in out and "IT DOES NOT HOLD" in out


def test_gold_answers_and_solutions(capsys, tmp_path):
    write_lines(tmp_path / "math500", *(json.dumps({"answer": rf"\frac{{{n}}}{{7}}"}) for n in (1, 2, 3)))
    code, out, _ = run(capsys, "gold", "--data-dir", str(tmp_path))
    assert code == 0 and "math500" in out and "3 normalized" in out, out
    code, _, err = run(capsys, "gold", "--data-dir", str(tmp_path / "math500"))
    assert code == 1 and "no benchmark found" in err


@needs("math500")
def test_golds_of_real_benchmarks_and_a_grader_that_accepts_anything(tmp_path, monkeypatch):
    for name, every in (("math500", 25), ("aime24", 10), ("olympiadbench", 25), ("gsm8k", 50)):
        lines = (DATA / name / "test.jsonl").read_text(encoding="utf-8").splitlines()
        write_lines(tmp_path / name, *lines[::every])
    rows = gold_answers.gold_answers(tmp_path)
    for row in rows:
        assert (row.correct, row.variants_correct, row.failures) == (row.problems, row.variants, [])
        assert row.others_accepted == []
    monkeypatch.setattr(gold_answers, "grade_math", lambda *_, **__: Verdict(True, method="normalized"))
    for row, fooled in zip(rows, gold_answers.gold_answers(tmp_path), strict=True):
        assert len(fooled.others_accepted) == fooled.others == row.problems


@needs("code_rl")
def test_the_benchmarks_own_solutions_pass_and_others_fail():
    rows = canonical(DATA, limit=2)
    assert {row["set"] for row in rows} == set(SETS)
    assert [row for row in rows if row["as_expected"] != row["tasks"]] == []


@needs("humanevalplus")
def test_humanevalplus_32_is_mended():
    right, wrong = (case for case in SETS["HumanEval+"](DATA) if case.name == "HumanEval/32")
    near = right.tests["prompt"] + "    return 0\ndef find_zero(xs):\n    return 0.5\n"
    for program, reason in ((right.program, None), (wrong.program, "error"), (near, "wrong_answer")):
        verdict = grade_code(program, right.tests, timeout=60, extract=False)
        assert verdict.reason == reason, verdict
