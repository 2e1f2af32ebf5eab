"""Data sets of every kind are looked at before Ray starts, and those that cannot be used are refused."""

import json
from pathlib import Path

import pytest
from command_lines import refusal
from test_early_errors import ROWS, write_rows

from openrlhf_shear.cli.train_ppo_ray import parse
from openrlhf_shear.data import training_rows
from openrlhf_shear.data.files import near_path


def test_a_data_set_that_cannot_be_reached(job, capsys, monkeypatch):
    import datasets

    def unreachable(*args, **kwargs):
        raise ConnectionError("no connection\nand more")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    monkeypatch.setattr(training_rows, "unreachable", str)
    told = refusal(capsys, job("--data.prompt_dataset no/such-data"))
    assert "data.prompt_dataset: no/such-data is neither a file or folder here nor a data set" in told
    assert "(no connection)" in told
    parse(job("--data.prompt_dataset no/such-data --use_ms"))


def test_a_hub_data_set_is_streamed_and_checked(job, capsys, monkeypatch):
    import datasets

    def load_dataset(name, data_dir=None, streaming=False):
        assert (name, data_dir, streaming) == ("some/data", "main", True)
        rows = datasets.Dataset.from_list([{"question": "q", "gold": "a"}])
        return datasets.IterableDatasetDict({"train": rows.to_iterable_dataset()})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(training_rows, "unreachable", str)
    parse(job("--data.prompt_dataset some/data@main --data.label_key gold"))
    assert "one of its columns: question, gold" in refusal(capsys, job("--data.prompt_dataset some/data@main"))
    told = refusal(capsys, job("--data.prompt_dataset some/data@main --data.prompt_split test"))
    assert "data.prompt_split: some/data has no split 'test'; use one of train" in told


def write_arrow(path: str, data) -> None:
    from datasets.arrow_writer import ArrowWriter

    with ArrowWriter(path=path, features=data.features) as writer:
        for row in data:
            writer.write(row)
        writer.finalize()


def write_splits(path: str, data) -> None:
    from datasets import DatasetDict

    DatasetDict({"train": data}).save_to_disk(path)


def write_files(path: str, data) -> None:
    Path(path).mkdir()
    write_rows(f"{path}/train.jsonl", list(data))


WRITERS = {
    "jsonl": lambda path, data: write_rows(path, list(data)),
    "json": lambda path, data: Path(path).write_text(json.dumps(list(data), indent=1)),
    "csv": lambda path, data: data.to_csv(path),
    "parquet": lambda path, data: data.to_parquet(path),
    "arrow": write_arrow,
    "saved": lambda path, data: data.save_to_disk(path),
    "saved_splits": write_splits,
    "files": write_files,
}


def write_data_set(kind: str, rows: list[dict]) -> str:
    import datasets

    columns = {name: [row[name] for row in rows] for name in ("question", "answer")}
    features = datasets.Features(dict.fromkeys(columns, datasets.Value("string")))
    WRITERS[kind](f"data.{kind}", datasets.Dataset.from_dict(columns, features=features))
    return f"data.{kind}"


@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_of_local_data_set(job, capsys, kind):
    path = write_data_set(kind, ROWS)
    parse(job(f"--data.prompt_dataset {path} --eval.dataset {path}"))
    told = refusal(capsys, job(f"--data.prompt_dataset {path} --data.label_key gold"))
    assert f"data.label_key is not a column of {path}" in told
    assert "question, answer" in told
    told = refusal(capsys, job(f"--eval.dataset {path} --data.label_key gold"))
    assert "gold" in told
    if kind != "saved":  # a single saved data set has no splits, and OpenRLHF asks for none
        assert "has no split 'dev'" in refusal(capsys, job(f"--data.prompt_dataset {path} --data.prompt_split dev"))


@pytest.mark.parametrize("kind", [kind for kind in WRITERS if kind != "files"])
def test_an_empty_data_set(job, capsys, kind):
    path = write_data_set(kind, [])
    told = refusal(capsys, job(f"--data.prompt_dataset {path}"))
    if kind.startswith("saved"):  # load_from_disk itself refuses them
        assert f"data.prompt_dataset: {path} cannot be read" in told
    else:
        assert "has no rows" in told and str(path) in told


def test_a_hint_names_another_path_than_the_one_in_the_command(tmp_path):
    (tmp_path / "rows.jsonl").touch()
    assert near_path(str(tmp_path / "row.jsonl")).endswith("rows.jsonl?)")
    assert near_path(str(tmp_path / "rows.jsonl")) == near_path(str(tmp_path)) == ""
