"""The checks of the graders (`benchmarks/check_rewards.py`): a slice of each, and graders that must not pass."""

import json
from pathlib import Path

import check_rewards
import gold
import pytest
from gold import SETS, canonical

from openrlhf_shear.rewards import Verdict, grade_code

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
    rows = gold.gold_answers(tmp_path)
    assert len(rows) == 8 and [row for row in rows if row["others"]] == []
    monkeypatch.setattr(gold, "grade_math", lambda *_, **__: Verdict(True, method="normalized"))
    fooled = [row for row in gold.gold_answers(tmp_path) if row["graded"] == "the next golds"]
    assert [len(row["others"]) for row in fooled] == [row["count"] for row in fooled]


@needs("code_rl")
def test_the_benchmarks_own_solutions_pass_and_others_fail():
    rows = canonical(DATA, limit=2)
    assert {row["benchmark"] for row in rows} == set(SETS)
    assert [row for row in rows if row["others"]] == []


@needs("humanevalplus")
def test_humanevalplus_32_is_mended():
    right, wrong = (case for case in SETS["HumanEval+"](DATA) if case.name == "HumanEval/32")
    near = right.tests["prompt"] + "    return 0\ndef find_zero(xs):\n    return 0.5\n"
    for program, reason in ((right.program, None), (wrong.program, "error"), (near, "wrong_answer")):
        verdict = grade_code(program, right.tests, timeout=60, extract=False)
        assert verdict.reason == reason, verdict
