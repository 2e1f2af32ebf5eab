"""The benchmarks: their prompts word for word, their labels for the graders, and errors for files that do not fit."""

import ast
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from benchmark_rows import DATA, FUNCTION, ROWS, STDIN, load, needs_data, write
from cases import cases

from openrlhf_shear.data.files import DataError, open_rows
from openrlhf_shear.rewards.code import tests_of as read_tests
from openrlhf_shear.rewards.labels import golds_of
from openrlhf_shear.rewards.maths import grade_math
from openrlhf_shear.rewards.maths.grader import STEP_BY_STEP
from openrlhf_shear.sampling import prompts, questions
from openrlhf_shear.sampling.benchmarks import BENCHMARKS, SUITES, custom, load_questions, parse_names

PROMPTS = Path(__file__).parents[2] / "data" / "prompts"


def without(row: dict, *names: str) -> dict:
    return {name: value for name, value in row.items() if name not in names}


def changed(name: str, changes: dict) -> dict:
    """A benchmark's row with these columns, without those of `without`; `only` is another row."""
    row = {**ROWS, "livecodebench_function": FUNCTION}[name] | changes
    return changes.get("only") or without(row, "without", *changes.get("without", ()))


def test_the_suites_are_the_papers():
    ks = {"aime24": 32, "aime25": 32, "amc23": 8, "math500": 1, "olympiadbench": 1}
    assert {name: BENCHMARKS[name].k for name in SUITES["math"]} == ks
    assert [BENCHMARKS[name].k for name in (*SUITES["code"], "gsm8k")] == [4, 4, 4, 4, 4, 1]
    assert all(BENCHMARKS[name].task == task for task, names in SUITES.items() for name in names)
    assert set(BENCHMARKS) == {*SUITES["math"], *SUITES["code"], "gsm8k"} == set(ROWS)


GOLDEN = {
    **dict.fromkeys((*SUITES["math"], "gsm8k"), "maths"),
    **dict.fromkeys(("humaneval", "humaneval+"), "humaneval"),
    **dict.fromkeys(("mbpp", "mbpp+"), "mbpp"),
    "livecodebench": "livecodebench_stdin",
}


def golden(turns: list[dict]) -> str:
    return "".join(f"[{turn['role']}]\n{turn['content']}[end]\n" for turn in turns)


@pytest.mark.parametrize(
    ("name", "row", "text"),
    [*((name, ROWS[name], GOLDEN[name]) for name in BENCHMARKS), ("livecodebench", FUNCTION, "livecodebench_function")],
)
def test_prompts_are_the_protocols_text(tmp_path, name, row, text):
    (question,) = load(tmp_path, name, row)
    assert golden(question.messages) == (PROMPTS / f"{text}.txt").read_text()
    assert question.benchmark == name


@pytest.mark.parametrize(*cases("sampling", "test_golds"))
def test_golds(tmp_path, name, changes, label):
    (question,) = load(tmp_path, name, changed(name, changes))
    assert (question.label, question.tolerance) == (label, None)


@pytest.mark.parametrize(*cases("sampling", "test_labels_are_graded_with_the_rows_tolerance"))
def test_labels_are_graded_with_the_rows_tolerance(tmp_path, name, changes, right, wrong):
    (question,) = load(tmp_path, name, changed(name, changes))
    assert question.tolerance == (0.1 if "error" in changes else None)
    for answer, correct in ((right, True), (wrong, False)):
        gold = golds_of(question.label)
        assert grade_math(rf"\boxed{{{answer}}}", gold, tolerance=question.tolerance, timeout=30).correct == correct


@pytest.mark.parametrize(("name", "tests"), [("mbpp", 2), ("mbpp+", 1), ("humaneval", 1), ("humaneval+", 1)])
def test_base_and_plus_tests_are_told_apart(tmp_path, name, tests):
    (question,) = load(tmp_path, name, ROWS[name])
    assert len(read_tests(question.label)) == tests
    assert ("add(10, 20)" in question.label) == (name == "mbpp+")


def test_ids_are_the_data_sets_own_or_the_rows_numbers(tmp_path):
    ids = {name: load(tmp_path, name, ROWS[name])[0].id for name in BENCHMARKS}
    maths = {"aime24": "3", "aime25": "3", "amc23": "0", "math500": "test/a/1.json", "olympiadbench": "7", "gsm8k": "1"}
    programs = {"humaneval": "HumanEval/0", "humaneval+": "HumanEval/0", "mbpp": "2", "mbpp+": "2"}
    assert ids == maths | programs | {"livecodebench": "abc_a"}
    later = load(tmp_path, "math500", without(ROWS["math500"], "unique_id"), ROWS["math500"])
    assert [question.id for question in later] == ["1", "2"], "the first row has no id"


def test_a_limit_takes_the_first(tmp_path):
    rows = [ROWS["gsm8k"]] * 3
    assert [question.id for question in load(tmp_path, "gsm8k", *rows, limit=2)] == ["1", "2"]
    with pytest.raises(ValueError, match="limit must be at least 1: got 0"):
        load(tmp_path, "gsm8k", *rows, limit=0)


@pytest.mark.parametrize(*cases("sampling", "test_a_row_that_does_not_fit_is_an_error"))
def test_a_row_that_does_not_fit_is_an_error(tmp_path, name, rows, message):
    with pytest.raises(DataError, match=message):
        load(tmp_path, name.partition("_")[0], *(changed(name, changes) for changes in rows))


def test_a_missing_file_names_the_tried_paths(tmp_path):
    with pytest.raises(DataError) as error:
        load_questions(BENCHMARKS["mbpp"], tmp_path)
    for text in ("mbppplus/MbppPlus-OriginFmt.jsonl.gz", "evalplus/mbppplus on the hub"):
        assert text in str(error.value)


def test_the_hub_is_read_by_id_config_and_split(monkeypatch):
    asked = []
    monkeypatch.setattr(questions, "open_rows", lambda *given: asked.append(given) or open_rows(*given[:1]))
    for name in ("olympiadbench", "gsm8k"):
        benchmark = replace(BENCHMARKS[name], hub="/nowhere")
        with pytest.raises(DataError, match="/nowhere does not exist"):
            load_questions(benchmark)
    assert asked == [("/nowhere", "train", ("OE_TO_maths_en_COMP",)), ("/nowhere", "test", ("main",))]


def test_livecodebenchs_file_is_fetched_as_it_is(monkeypatch, tmp_path):
    import huggingface_hub

    path = write(tmp_path, "livecodebench", STDIN)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *given, **more: str(path))
    assert [question.id for question in load_questions(BENCHMARKS["livecodebench"])] == ["abc_a"]

    def offline(*given, **more):
        raise OSError("no route\nmore")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    with pytest.raises(DataError, match=r"test6.jsonl of livecodebench/code_generation_lite cannot .* \(no route\)"):
        load_questions(BENCHMARKS["livecodebench"])


def test_names_are_parsed():
    assert [benchmark.name for benchmark in parse_names(" AIME24, math500,aime24,")] == ["aime24", "math500"]
    assert [benchmark.name for benchmark in parse_names("gsm8k,math")] == ["gsm8k", *SUITES["math"]]
    with pytest.raises(ValueError, match=r"called 'mbbp' \(did you mean mbpp\?\); use one or more of aime24, aime25"):
        parse_names("aime24,mbbp")
    with pytest.raises(ValueError, match="no benchmark is named: got ' ,'; use one or more of aime24"):
        parse_names(" ,")


def test_a_custom_file_of_texts_and_of_messages(tmp_path):
    path = tmp_path / "mine.v2.jsonl"
    chat = [{"role": "system", "content": "Short."}, {"role": "user", "content": "2 + 2?", "name": "x"}]
    path.write_text(json.dumps({"q": "1 + 1?", "a": ["2", "two"]}) + "\n" + json.dumps({"q": chat, "a": 4}))
    benchmark = custom(path, "math", "q", "a", 8)
    assert (benchmark.name, benchmark.title, benchmark.k) == ("custom-mine", "mine.v2.jsonl", 8)
    text, messages = load_questions(benchmark, tmp_path / "elsewhere")
    assert text.messages == [{"role": "system", "content": STEP_BY_STEP}, {"role": "user", "content": "1 + 1?"}]
    assert golds_of(text.label) == ["2", "two"]
    assert messages.messages == [{"role": "system", "content": "Short."}, {"role": "user", "content": "2 + 2?"}]
    assert (messages.id, messages.label) == ("2", "4")


def test_a_custom_file_of_programs(tmp_path):
    path = tmp_path / "code.jsonl"
    path.write_text(json.dumps({"id": "a", "prompt": "Add.", "label": {"inputs": ["1 2"], "outputs": ["3"]}}))
    (question,) = load_questions(custom(path, "code", "prompt", "label", 1))
    assert question.messages == [{"role": "user", "content": "Add."}] and len(read_tests(question.label)) == 1
    with pytest.raises(DataError, match="its label is tests, and the task math needs an answer"):
        load_questions(custom(path, "math", "prompt", "label", 1))
    with pytest.raises(DataError, match="its label is an answer, and the task code needs tests"):
        load_questions(custom(path, "code", "prompt", "id", 1))
    assert load_questions(custom(path, "reward.py", "prompt", "id", 1))[0].label == "a"


def test_a_custom_file_that_does_not_fit(tmp_path):
    path = tmp_path / "mine.jsonl"
    with pytest.raises(ValueError, match=r"task must be math, .* or a \.py file"):
        custom(path, "maths", "prompt", "label", 1)
    with pytest.raises(ValueError, match="k must be at least 1"):
        custom(path, "math", "prompt", "label", 0)
    with pytest.raises(DataError, match="does not exist"):
        load_questions(custom(path, "math", "q", "a", 1))
    path.write_text('{"q": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}], "a": 1}')
    with pytest.raises(DataError, match="not_one_turn"):
        load_questions(custom(path, "math", "q", "a", 1))
    with pytest.raises(DataError, match=r"no column p and no l, which mine\.jsonl needs; its columns are q, a"):
        load_questions(custom(path, "math", "p", "l", 1))


COUNTS = {"aime24": 30, "math500": 500, "olympiadbench": 675, "gsm8k": 1319}
PROGRAMS = {"humaneval": 164, "humaneval+": 164, "mbpp": 378, "mbpp+": 378}


@needs_data
@pytest.mark.parametrize("name", [*COUNTS, *PROGRAMS])
def test_downloaded_files_are_read_whole(name):
    found = load_questions(BENCHMARKS[name], DATA)
    assert len(found) == {**COUNTS, **PROGRAMS}[name] == len({question.id for question in found})
    assert len(found) == BENCHMARKS[name].size
    if name in PROGRAMS:
        assert all(len(read_tests(question.label)) for question in found)
    if name == "olympiadbench":
        assert [(question.label, question.tolerance) for question in found if question.tolerance] == [("4.2", 0.1)]


@needs_data
def test_mbpp_is_asked_as_evalplus_does():
    """EvalPlus's own file holds the docstrings it asks by."""
    own = [row["prompt"].strip() for row in open_rows(str(DATA / "mbppplus" / "MbppPlus.jsonl.gz")).rows]
    found = load_questions(BENCHMARKS["mbpp+"], DATA)
    asked = [question.messages[0]["content"] for question in found]
    assert asked == [prompts.EVALPLUS.format(prompt=prompt) for prompt in own]


@needs_data
def test_plus_tests_hold_the_base_tests():
    own = open_rows(str(DATA / "humanevalplus" / "HumanEvalPlus.jsonl.gz")).rows
    for question, row in zip(load_questions(BENCHMARKS["humaneval+"], DATA, 40), own, strict=False):
        inputs = ast.literal_eval(re.search(r"^\s*inputs = (.*)$", json.loads(question.label)["test"], re.MULTILINE)[1])
        assert all(base in inputs for base in row["base_input"]) and len(inputs) > len(row["base_input"])
