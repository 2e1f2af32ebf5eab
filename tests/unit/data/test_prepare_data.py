"""Data sets become the file that OpenRLHF reads; the report counts every dropped row."""

import gzip
import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from benchmark_rows import DATA, needs_data
from cases import cases
from command_lines import refusal

from openrlhf_shear.cli import prepare_data as cli
from openrlhf_shear.data.checks import normalized
from openrlhf_shear.data.files import DataError, open_rows
from openrlhf_shear.data.sources import STEP_BY_STEP, Dropped, label, prompt_text

MATHS = [
    {"problem": "What is 1 + 1?", "solution": r"First \boxed{3}, no: it is $\boxed{\frac{4}{2}}$."},
    {"problem": "What is 2 + 2?", "solution": r"It is \boxed 4."},
]
STDIN = {"inputs": ["1 2\n"], "outputs": ["3\n"]}


def write(path: Path, rows: list) -> str:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def prepare(tmp_path: Path, rows: list, *words: str, source: str = "math") -> tuple[list[dict], dict]:
    """The rows written and the report, of `rows` prepared with these options."""
    output = tmp_path / "train.jsonl"
    cli.main(["--source", source, "--input", write(tmp_path / "rows.jsonl", rows), "--output", str(output), *words])
    report = json.loads((tmp_path / "train.jsonl.report.json").read_text())
    assert report["read"] == report["kept"] + sum(reason["rows"] for reason in report["dropped"].values())
    written = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(written) == report["kept"]
    return written, report


def questions(rows: list[dict]) -> list[str]:
    return [row["prompt"][-1]["content"] for row in rows]


def counts(report: dict) -> dict[str, int]:
    return {name: reason["rows"] for name, reason in report["dropped"].items()}


def test_math_takes_the_last_box_of_the_solution(tmp_path):
    rows, report = prepare(tmp_path, MATHS)
    assert [row["label"] for row in rows] == [r"\frac{4}{2}", "4"]
    system, user = {"role": "system", "content": STEP_BY_STEP}, {"role": "user", "content": "What is 1 + 1?"}
    assert rows[0]["prompt"] == [system, user]
    assert rows[0]["datasource"] == "math" and report["kinds"] == {"answer": 2} and not report["dropped"]


def test_a_solution_without_a_box_has_no_answer_whatever_else_it_says(tmp_path):
    no_box = {"problem": "And now?", "solution": "The answer is 4.\n#### 4"}
    essay = {"problem": "And then?", "solution": rf"\boxed{{{'1 + ' * 1000}1}}"}
    rows, report = prepare(tmp_path, [*MATHS, no_box, essay, {"problem": "And nothing?"}])
    assert len(rows) == 2 and counts(report) == {"no_answer": 3}
    assert report["dropped"]["no_answer"]["row"] == 3 and "#### 4" in report["dropped"]["no_answer"]["detail"]


@pytest.mark.parametrize(*cases("data", "test_rows_are_kept_or_dropped_by_their_reason"))
def test_rows_are_kept_or_dropped_by_their_reason(tmp_path, source, words, given, kept, dropped):
    rows, report = prepare(tmp_path, given, *words.split(), source=source)
    assert [[len(row["prompt"]), row["prompt"][-1]["content"], row["label"]] for row in rows] == kept
    assert counts(report) == dropped and {row["datasource"] for row in rows} == {
        "rows" if source == "columns" else source
    }


def eurus(ground_truth, ability="code", turns=()) -> dict:
    user = {"role": "user", "content": f"Add them: {ground_truth!r}"}
    return {
        "prompt": [{"role": "system", "content": "a page of instructions"}, user, *turns],
        "ability": ability,
        "reward_model": {"ground_truth": ground_truth, "style": "rule"},
    }


def test_eurus_keeps_code_rows_without_their_system_turn(tmp_path):
    function = {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [3, 7]}
    found = [
        eurus(json.dumps(STDIN)),
        eurus(json.dumps(function)),
        eurus("42", ability="math"),
        eurus("not tests"),
        eurus(json.dumps({"inputs": ["1"], "outputs": []})),
        eurus(None),
        eurus(json.dumps(STDIN | {"inputs": ["2 1\n"]}), turns=({"role": "assistant", "content": "3"},)),
    ]
    rows, report = prepare(tmp_path, found, source="eurus-code")
    assert [[turn["role"] for turn in row["prompt"]] for row in rows] == [["user"], ["user"]]
    assert json.loads(rows[0]["label"]) == STDIN and json.loads(rows[1]["label"]) == function
    assert report["kinds"] == {"stdin": 1, "function": 1}
    assert counts(report) == {"bad_tests": 3, "not_code": 1, "not_one_turn": 1}


@pytest.mark.parametrize(*cases("data", "test_a_label_is_tests_as_an_object_or_its_text_or_a_gold_answer"))
def test_a_label_is_tests_as_an_object_or_its_text_or_a_gold_answer(given, read, kind):
    text, found = label(given)
    assert (text if kind == "answer" else json.loads(text), found) == (read, kind)


ASSISTANT = {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("read", "given", "reason"),
    [
        *((label, given, "bad_tests") for given in ({}, {"tests": 1}, {"inputs": [], "outputs": []})),
        (label, "{'inputs': {1}, 'outputs': [1]}", "bad_tests"),
        *((label, given, "no_answer") for given in (None, "", " ", [], [None, " "], ["2", None])),
        *((label, given, "no_answer") for given in (float("nan"), True, [False], '["2", null]', "[]")),
        *((prompt_text, given, "not_one_turn") for given in ([], ["text"], [ASSISTANT], [{"role": "system"}])),
        (prompt_text, json.dumps([ASSISTANT]), "not_one_turn"),
    ],
)
def test_what_cannot_be_used_is_dropped_by_its_reason(read, given, reason):
    with pytest.raises(Dropped) as drop:
        read(given)
    assert drop.value.reason == reason and drop.value.detail


def test_the_system_turn_is_the_user_s_or_absent(tmp_path):
    assert prepare(tmp_path, MATHS, "--system", "Be brief.")[0][0]["prompt"][0]["content"] == "Be brief."
    assert len(prepare(tmp_path, MATHS, "--system", "", "--overwrite")[0][0]["prompt"]) == 1


def test_the_first_row_may_lack_the_answer(tmp_path):
    rows, report = prepare(tmp_path, [{"problem": "What is this?"}, *MATHS])
    assert len(rows) == 2 and report["dropped"]["no_answer"]["row"] == 1
    assert normalized("1 + 1") != normalized("1 - 1")


def test_excluded_problems_are_found_alone_and_within_a_longer_prompt(tmp_path):
    story = "There once was a number that was larger than every number that anyone had ever written down. Which?"
    found = [
        *MATHS,
        {"problem": f"Solve this:\n\n{story.upper()} Answer briefly.", "solution": r"\boxed{1}"},
        {"problem": "Is it true? What is 2 + 2? Say.", "solution": r"\boxed{4}"},
    ]
    rows = [{"question": "What is 2 +  2?"}, {"question": ""}, {"problem": "of another column"}]
    first = write(tmp_path / "first.jsonl.gz", rows)
    second = write(tmp_path / "second.jsonl", [{"prompt": [{"role": "user", "content": story}]}])
    rows, report = prepare(tmp_path, found, "--exclude", first, second)
    assert counts(report) == {"in_excluded": 2}
    assert questions(rows) == ["What is 1 + 1?", "Is it true? What is 2 + 2? Say."]  # a short one may be part of any
    assert report["dropped"]["in_excluded"]["detail"].startswith(first)


def test_problems_beside_a_number_and_in_a_chat_with_its_answer_are_excluded(tmp_path, capsys):
    chat = [{"role": "user", "content": "What is 2 + 2?"}, ASSISTANT]
    numbered = write(tmp_path / "numbered.jsonl", [{"problem": 1, "question": "What is 1 + 1?"}])
    answered = write(tmp_path / "answered.jsonl", [{"prompt": chat}])
    rows, report = prepare(tmp_path, [*MATHS, *many(1)], "--exclude", numbered, answered)
    assert questions(rows) == ["What is 0?"] and counts(report) == {"in_excluded": 2}
    file = write(tmp_path / "empty.jsonl", [{"problem": None}, {"problem": 7}])
    with pytest.raises(SystemExit):
        prepare(tmp_path, MATHS, "--exclude", file, "--overwrite")
    assert "has no row with a problem in problem, question" in capsys.readouterr().err


@pytest.fixture
def tokenizer(tmp_path):
    """One token a word, and a chat template that adds a word for each turn and one for the answer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"unknown": 0}, unk_token="unknown"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="unknown")
    fast.chat_template = (
        "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + ' ' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant{% endif %}"
    )
    fast.save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def test_the_length_counts_the_whole_chat(tmp_path, tokenizer):
    found = [{"problem": "word " * n, "solution": r"\boxed{1}"} for n in (5, 6)]
    words = ["--system", "Be brief.", "--tokenizer", str(tokenizer), "--max-prompt-tokens"]
    rows, report = prepare(tmp_path, found, *words, "10")  # system Be brief. user 5 assistant
    assert len(rows) == 1 and report["dropped"]["too_long"]["detail"].startswith("11 tokens")
    assert len(prepare(tmp_path, found, *words, "11", "--overwrite")[0]) == 2


def test_openrlhf_reads_the_file_as_it_was_meant(tmp_path, tokenizer):
    preprocess = pytest.importorskip("openrlhf.datasets.prompts_dataset", exc_type=ImportError).preprocess_data
    import datasets
    from transformers import AutoTokenizer

    found = [{"problem": "Add \u00e9.", "tests": STDIN}]
    prepare(tmp_path, found, "--prompt-key", "problem", "--label-key", "tests", "--system", "Run.", source="columns")
    output = str(tmp_path / "train.jsonl")
    (row,) = datasets.load_dataset("json", data_files=output, split="train", cache_dir=str(tmp_path / "cache"))
    template = AutoTokenizer.from_pretrained(tokenizer).apply_chat_template
    prompt, told = preprocess(row, None, "prompt", "label", template)
    assert prompt == "system Run. user Add \u00e9. assistant"
    assert json.loads(told) == STDIN and row["datasource"] == "rows"


def test_what_openrlhf_cannot_load_is_dropped(tmp_path):
    picture = {"problem": "See <image> here", "solution": r"\boxed{1}"}
    half = {"problem": "Half \ud800 of it", "solution": r"\boxed{1}"}
    rows, report = prepare(tmp_path, [*MATHS, picture, half])
    assert len(rows) == 2 and counts(report) == {"image": 1, "not_utf8": 1}


def many(n: int) -> list[dict]:
    return [{"problem": f"What is {i}?", "solution": rf"\boxed{{{i}}}"} for i in range(n)]


def test_a_limit_ends_the_reading_and_a_seed_chooses(tmp_path):
    rows, report = prepare(tmp_path, many(20), "--limit", "5")
    assert [row["label"] for row in rows] == list("01234") and report["read"] == 5

    def drawn(seed: str) -> list[str]:
        rows, report = prepare(tmp_path, many(20), "--limit", "5", "--seed", seed, "--overwrite")
        assert report["read"] == 20 and counts(report) == {"over_limit": 15}
        return [row["label"] for row in rows]

    assert drawn("1") == drawn("1") != drawn("2")


def test_the_same_options_write_the_same_files(tmp_path):
    def written() -> list[bytes]:
        prepare(tmp_path, [*many(20), *MATHS, MATHS[0]], "--seed", "3", "--overwrite")
        return [(tmp_path / f"train.jsonl{end}").read_bytes() for end in ("", ".report.json")]

    assert written() == written()


def test_nothing_kept_is_an_error_and_leaves_no_file(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        prepare(tmp_path, [{"problem": "p", "solution": "none"}])
    assert "no row is left" in str(stop.value) and "no_answer" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_broken_line_stops_it_and_an_earlier_output_stays(tmp_path, capsys):
    prepare(tmp_path, MATHS)
    before = (tmp_path / "train.jsonl").read_bytes()
    broken = tmp_path / "broken.jsonl"
    broken.write_text(json.dumps(many(1)[0]) + "\n{\n")
    words = ["--source", "math", "--input", broken, "--output", tmp_path / "train.jsonl"]
    assert "is there already; use --overwrite" in refusal(capsys, words, cli.main)
    assert "broken.jsonl: line 2 is not JSON" in refusal(capsys, [*words, "--overwrite"], cli.main)
    assert (tmp_path / "train.jsonl").read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_every_kind_of_file_gives_the_same_rows(tmp_path):
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "a.json").write_text(json.dumps(MATHS, indent=1))
    write(tmp_path / "b.jsonl.gz", MATHS)
    (tmp_path / "c.jsonl").write_text("\ufeff\n" + "\n\n".join(map(json.dumps, MATHS)))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(MATHS), tmp_path / "d.parquet")
    for path in sorted(tmp_path.iterdir()):
        found = open_rows(str(path))
        assert found.columns == ("problem", "solution")
        assert list(found.rows) == MATHS, path.name


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", b"x\n1\n", "not of a known kind"),
        ("a.jsonl", b"", "has no row"),
        ("a.json", b"[]", "has no row"),
        ("a.json", b"[1]", "row 1 must be an object: got int"),
        ("a.jsonl", b"1\n", "line 1 must be an object: got int"),
        ("a.jsonl", b'{"a": "\xff"}\n', "line 1 is not UTF-8: invalid start byte 0xff"),
        ("a.jsonl.gz", b"plain", "is not compressed by gzip, as its name says"),
        ("a.parquet", b"plain", "is no parquet file, as its name says"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=says):
        list(open_rows(str(tmp_path / name)).rows)


def test_hub_ids_are_read_with_the_configurations_they_need(tmp_path, monkeypatch):
    import datasets

    asked, rows = [], [{"problem": "What is 1?", "solution": r"\boxed{1}"}]
    load = Mock(side_effect=lambda *given, **split: asked.append((*given, *split.values())) or rows)
    monkeypatch.setattr(datasets, "load_dataset", load)
    words = ["--source", "math", "--output", str(tmp_path / "train.jsonl"), "--overwrite"]
    cli.main(words)
    cli.main([*words, "--input", "EleutherAI/hendrycks_math", "--split", "test"])
    assert asked[:2] == [
        ("DigitalLearningGmbH/MATH-lighteval", None, "train"),
        ("EleutherAI/hendrycks_math", "algebra", "test"),
    ]
    report = json.loads((tmp_path / "train.jsonl.report.json").read_text())
    assert len(asked) == 8 and report["read"] == 7
    load.side_effect = ConnectionError("no route\nand more")
    with pytest.raises(DataError, match=r"'train' of some/where .*\(no route\)"):
        open_rows("some/where")


COLUMNS = "--prompt-key problem --label-key tests"


@needs_data
@pytest.mark.parametrize(
    ("source", "file", "more", "kinds", "dropped"),
    [
        ("math", "math_train/math_train_7500.jsonl.gz", f"--exclude {DATA}/math500/test.jsonl", {"answer": 7496},
         {"duplicate": 2, "no_answer": 2}),
        ("gsm8k", "gsm8k/train.jsonl", "--check --limit 200", {"answer": 200}, {}),
        ("eurus-code", "code_rl/eurus_format_row.jsonl", "", {"stdin": 1}, {}),
        ("columns", "code_rl/code_contests_165_rllm.json", COLUMNS, {"stdin": 140}, {"image": 25}),
        ("columns", "code_rl/leetcode_train_1889_rllm.json", COLUMNS, {"assert": 1889}, {}),
    ],
)  # fmt: skip
def test_the_real_sets_lose_these_rows_and_no_others(tmp_path, source, file, more, kinds, dropped):
    cli.main(["--source", source, "--input", str(DATA / file), "--output", str(tmp_path / "d.jsonl"), *more.split()])
    report = json.loads((tmp_path / "d.jsonl.report.json").read_text())
    assert report["kinds"] == kinds and counts(report) == dropped
