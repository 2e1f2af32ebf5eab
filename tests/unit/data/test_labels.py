"""A label reaches `reward_func` as it is in the file, and preflight reads the rows that training reads."""

import gzip
import json
from pathlib import Path

import datasets
import pytest
from cases import cases, table
from command_lines import refusal
from test_prompts import Strategy, arguments

from openrlhf_shear.data.columns import no_label
from openrlhf_shear.data.files import DataError
from openrlhf_shear.data.training_rows import training_rows
from openrlhf_shear.evaluation.suite import suite_plan
from openrlhf_shear.line.run import Run
from openrlhf_shear.preflight import rows
from openrlhf_shear.rewards.function_workers import FunctionWorkers
from openrlhf_shear.train.sampling.prompt_data import read_prompts

# Of four of these OpenRLHF's reader makes something else (datasets 5.2): datetimes, 1.0 of 1, 9.2e18 of 2**63.
COLUMNS = table("data", "COLUMNS")


def write(path: str, labels, prompt: str = "1 + 1?") -> str:
    Path(path).parent.mkdir(exist_ok=True)
    rows = [json.dumps({"question": prompt, "answer": label}) for label in labels]
    text = f"[{','.join(rows)}]" if path.endswith("json") else "\n".join(rows)
    Path(path).write_bytes(gzip.compress(text.encode()) if path.endswith("gz") else text.encode())
    return path


def labels_of(spec: str, **changed) -> list:
    """Return the labels of a training run's prompts."""
    args = arguments(spec, chat=False, template=None)
    vars(args.data).update(changed)
    made = read_prompts(Strategy(args), _Tokenizer())
    prompts, evaluated = made.training, made.evaluation
    assert [evaluated[i] for i in range(len(evaluated))] == [prompts[i] for i in range(len(prompts))]
    return [prompts[i][2] for i in range(len(prompts))]


class _Tokenizer:
    """A tokenizer without a BOS token."""

    bos_token = None

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": list(text.encode())}

    def decode(self, ids):
        return bytes(ids).decode()


def same(given: object, other: object) -> bool:
    """Equal in type too: 1 is not 1.0, nor True."""
    return json.dumps(given) == json.dumps(other) and type(given) is type(other)


@pytest.mark.parametrize("path", ["rows.jsonl", "rows.json", "folder/train.jsonl", "folder/train.jsonl.gz"])
@pytest.mark.parametrize("column", COLUMNS)
def test_labels_of_json_are_those_of_the_file(tmp_path, monkeypatch, column, path):
    monkeypatch.chdir(tmp_path)
    write(path, COLUMNS[column])
    spec = path.rpartition("/")[0] or path
    assert all(map(same, labels_of(spec), COLUMNS[column])) and len(labels_of(spec)) == len(COLUMNS[column])


@pytest.mark.parametrize("column", COLUMNS)
def test_a_suite_s_file_gives_a_reward_function_the_same_labels_as_training(tmp_path, monkeypatch, column):
    monkeypatch.chdir(tmp_path)
    write("rows.jsonl", COLUMNS[column])
    plan = suite_plan(arguments("rows.jsonl", chat=False, template=None))
    assert all(map(same, [question.label for question in plan.questions], labels_of("rows.jsonl")))
    write("none.jsonl", [None])
    with pytest.raises(DataError, match=r"row 1 of none\.jsonl cannot be used: no_answer: the label is null"):
        suite_plan(arguments("none.jsonl", chat=False, template=None))


def test_the_types_reach_the_reward_function(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "import json\ndef reward_func(queries, prompts, labels):\n"
        "    return {'rewards': 1.0, 'extra_logs': {}} if json.dumps(labels[0]) == prompts[0] else {'rewards': 0.0}\n"
    )
    with FunctionWorkers("mine.py", 60.0, 1) as workers:
        for labels in COLUMNS.values():
            for label in labels_of(write("rows.jsonl", labels)):
                assert workers.grade("", json.dumps(label), label).reward == 1.0, label


def test_every_value_of_csv_is_the_text_that_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    import csv

    labels = ["007", "1e5", "NaN", "null", "true", "2024-05-01", "12345678901234567890123"]
    labels += ['two\nlines, "quoted"', " 1 "]
    with open("rows.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("question", "answer"), *(("1 + 1?", label) for label in labels)])
    assert labels_of("rows.csv") == labels
    Path("rows.csv").write_bytes(b"\xef\xbb\xbf" + Path("rows.csv").read_bytes())
    assert labels_of("rows.csv") == labels


def test_labels_of_parquet_have_the_types_of_their_column(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for labels in (["007", "2024-05-01"], [2**62, -1], [0.5, 1.0], [["a"], []], [{"a": 1}, {"a": 2}]):
        rows = {"question": ["1 + 1?"] * len(labels), "answer": labels}
        datasets.Dataset.from_dict(rows).to_parquet("rows.parquet")
        assert all(map(same, labels_of("rows.parquet"), labels))


def test_a_label_that_no_text_file_could_hold_is_refused_in_a_line(job, capsys):
    from datetime import datetime
    from decimal import Decimal

    for label, kind in ((datetime(2024, 5, 1), "datetime"), (b"x", "bytes"), ([Decimal("1.5")], "Decimal")):
        datasets.Dataset.from_dict({"question": ["1?"], "answer": [label]}).to_parquet("rows.parquet")
        told = refusal(capsys, job("--data.prompt_dataset rows.parquet"))
        assert f"row 1 holds a {kind}, which is no text, number, list or object: the column must hold texts" in told
        with pytest.raises(DataError, match=f"data.label_key answer: row 1 of rows.parquet holds a {kind}"):
            labels_of("rows.parquet")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"a": [{"b": 1.5}]}, None),
        ({"a": [{"b": "\ud83d"}]}, "holds half of a surrogate pair"),
        ({"\ud83d": 1}, "holds half of a surrogate pair"),
        ({1: "a"}, "holds a dict"),
        (("a",), "holds a tuple"),
        ({"a": {2}}, "holds a set"),
        (None, "is null"),
        (float("nan"), "is null"),
    ],
)
def test_what_json_has_no_word_for(value, problem):
    told = no_label(value)
    assert told is None if problem is None else told.startswith(problem)


def facts(dataset: str, label_key: str, shares: str | None = None, most: int = 9, seed: int = 0) -> dict[str, object]:
    """What preflight tells of the rows of a run that resumes."""
    flags = {"data.prompt_dataset": dataset, "data.label_key": label_key, "data.prompt_probs": shares}
    flags |= {"data.prompt_split": "train", "data.input_key": "question", "data.input_template": None}
    flags |= {"data.apply_chat_template": False, "data.max_samples": most, "data.max_len": 2048}
    flags |= {
        "data.image_key": "images",
        "data.max_images_per_prompt": 0,
        "eval.dataset": None,
        "eval.split": "train",
        "use_ms": False,
    }
    flags |= {"rollout.max_new_tokens": None, "reward.remote_url": None, "train.seed": seed, "dry_run": False}
    flags |= {"ckpt.load_enable": True, "actor.model_name_or_path": "no-such-folder/of-a/model"}
    flags |= {"rollout.batch_size": 1, "train.num_episodes": 1, "eval.steps": -1, "ckpt.save_steps": -1}
    checking = rows.data(Run(flags))
    while True:
        try:
            next(checking)
        except StopIteration as end:
            return end.value


def test_blended_sets_are_in_openrlhf_s_order(tmp_path, monkeypatch):
    """With texts alone, which both readers read alike."""
    from openrlhf.datasets.utils import blending_datasets

    monkeypatch.chdir(tmp_path)
    for name, count in (("one", 7), ("two", 12)):
        write(f"{name}.jsonl", [f"{name} {i}" for i in range(count)])
    for probabilities, most in ((None, 100), (None, 9), ("0.3,0.7", 100), ("0.8,0.2", 6)):
        args = ("one.jsonl, two.jsonl", probabilities, _Printing(), 0)
        theirs = blending_datasets(*args, max_count=most, dataset_split="train")
        theirs = theirs.select(range(min(most, len(theirs))))["answer"]
        run = arguments("one.jsonl, two.jsonl", chat=False, template=None)
        run.eval.dataset = None
        run.data.prompt_probs, run.data.max_samples = probabilities, most
        made = read_prompts(Strategy(run), _Tokenizer())
        prompts, none = made.training, made.evaluation
        assert [prompts[i][2] for i in range(len(prompts))] == list(theirs) and none is None
        seen = facts("one.jsonl, two.jsonl", "answer", probabilities, most, run.train.seed)
        assert seen == prompts.fingerprint, "the driver sees what the trainer will"


class _Printing:
    args = type("args", (), {"use_ms": False})

    def print(self, *of):
        pass

    def is_rank_0(self):
        return False


def test_preflight_and_training_read_by_one_reader(tmp_path, monkeypatch):
    """What `training_rows` gives is what training has, whatever the kind; preflight asks it (test_early_errors)."""
    monkeypatch.chdir(tmp_path)
    write("rows.jsonl", COLUMNS["mixed"])
    write("more/train.jsonl", COLUMNS["dates"])
    write("more/test.jsonl", COLUMNS["codes"])
    assert labels_of("rows.jsonl,more") == [*COLUMNS["mixed"], *COLUMNS["dates"]]
    assert [row["answer"] for _, row in training_rows("more", "test")] == list(COLUMNS["codes"])
    Path("file.jsonl").symlink_to("rows.jsonl")
    whole = list(training_rows(f"file://{tmp_path}/rows.jsonl", "train", hub=True))
    assert [row["answer"] for _, row in whole] == list(COLUMNS["mixed"])
    assert len(list(training_rows(f"file://{tmp_path}/rows.jsonl", "train"))) == 1, "preflight fetches the first row"
    with pytest.raises(DataError, match="more has no split 'dev'; use one of t"):
        list(training_rows("more", "dev"))


@pytest.mark.parametrize(*cases("data", "test_a_row_that_preflight_did_not_see_ends_the_run_in_a_line"))
def test_a_row_that_preflight_did_not_see_ends_the_run_in_a_line(tmp_path, monkeypatch, row, said):
    """As later rows of a data set on the hub."""
    monkeypatch.chdir(tmp_path)
    write("rows.jsonl", ["2"])
    Path("rows.jsonl").write_text(Path("rows.jsonl").read_text() + "\n" + json.dumps(row))
    with pytest.raises(DataError) as raised:
        labels_of("rows.jsonl")
    assert said in str(raised.value)


# ── Labels of several columns ──

SEVERAL = [
    {"question": "1 + 1?", "answer": "2", "level": 1, "extra": {"source": "a"}, "a,b": "both"},
    {"question": "2 + 2?", "answer": "4", "level": None, "extra": {"source": "b"}, "a,b": None},
]
KEYS = {
    "answer,level": [{"answer": "2", "level": 1}, {"answer": "4", "level": None}],
    " extra.source , answer": [{"source": "a", "answer": "2"}, {"source": "b", "answer": "4"}],
    "extra.source": ["a", "b"],
}


def several(rows=SEVERAL) -> None:
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.parametrize("key", KEYS)
def test_a_label_of_several_columns_is_the_same_object_everywhere(tmp_path, monkeypatch, key):
    monkeypatch.chdir(tmp_path)
    several()
    assert labels_of("rows.jsonl", label_key=key) == KEYS[key]
    args = arguments("rows.jsonl", chat=False, template=None)
    args.data.label_key = key
    assert [question.label for question in suite_plan(args).questions] == KEYS[key]
    prompts = read_prompts(Strategy(args), _Tokenizer()).training
    assert facts("rows.jsonl", key) == prompts.fingerprint != facts("rows.jsonl", "answer")


def test_a_column_with_a_comma_in_its_name_is_that_column(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    several(SEVERAL[:1])
    assert labels_of("rows.jsonl", label_key="a,b") == ["both"]


@pytest.mark.parametrize(
    ("key", "told"),
    {
        "answer,levl": "data.label_key is not a column of rows.jsonl (--data.prompt_dataset): got 'levl'; use "
        "--data.label_key with one of its columns (did you mean level?)",
        "answer,extra.sorce": "names a column without a value in any row of rows.jsonl (--data.prompt_dataset): got "
        "'extra.sorce'",
        "answer,": "data.label_key: the label's columns must have different names: got 'answer,'",
        "answer,extra.answer": "must have different names: got 'answer,extra.answer'",
    }.items(),
)
def test_a_column_that_is_not_there_is_named(job, capsys, key, told):
    several()
    assert told in refusal(capsys, [*job("--data.prompt_dataset rows.jsonl"), "--data.label_key", key])


TRL = {
    "answer, level": "[10 * float(a) + level for a, level in zip(answer, level)]",
    "answer, level=None, **kwargs": "[float(kwargs == {}) * float(a) for a in answer]",
    "answer, **kwargs": "[float('prompts' in kwargs) + kwargs['level'][0] for a in answer]",
    "level": "[float(one) for one in level]",
}


@pytest.mark.parametrize(("parameters", "reward"), zip(TRL, (21, 0, 2, 1), strict=True))
def test_columns_reach_a_function_of_trl_s_form_as_keywords(tmp_path, parameters, reward):
    (tmp_path / "mine.py").write_text(f"def right(completions, {parameters}):\n    return {TRL[parameters]}\n")
    with FunctionWorkers(str(tmp_path / "mine.py"), 60.0, 1) as workers:
        assert workers.grade("1 + 1?2", "1 + 1?", KEYS["answer,level"][0]).reward == reward


def test_a_plain_label_is_no_second_column(tmp_path):
    (tmp_path / "mine.py").write_text("def right(completions, answer, level): return [1.0]\n")
    with FunctionWorkers(str(tmp_path / "mine.py"), 60.0, 1) as workers:
        for label, lacking in (("2", "answer, level"), ({"answer": "2"}, "level")):
            verdict = workers.grade("", "", label)
            assert verdict.why == "raised TypeError"
            assert verdict.detail == (
                f"it needs answer, level, and the label has no {lacking}; use --data.label_key answer,level"
            )
