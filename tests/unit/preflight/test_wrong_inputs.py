"""Wrong inputs of strangers, each with its answer: tests/data/cases/wrong_inputs.yaml."""

import gzip
import json
import os
import shutil
from importlib import import_module
from pathlib import Path

import pytest
from cases import cases, table
from command_lines import files_here, refusal

from openrlhf_shear.cli import train_ppo_ray
from openrlhf_shear.data import training_rows
from openrlhf_shear.preflight import models
from openrlhf_shear.tasks.arithmetic.problems import POLICY_DIR

FILES = table("wrong_inputs", "FILES")
ROWS = cases("wrong_inputs", "test_wrong_inputs")


def write_table(path: Path, columns: dict, again: str | None = None) -> None:
    """Write a parquet file, with a second column of the name `again`."""
    import pyarrow
    import pyarrow.parquet

    names = [*columns, *([again] if again else [])]
    arrays = [pyarrow.array(columns[name], pyarrow.string()) for name in names]
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(arrays, names=names), path)


BUILDERS = {
    "utf-16": lambda path, text: path.write_text(text, encoding="utf-16"),
    "utf-32": lambda path, text: path.write_text(text, encoding="utf-32"),
    "gzip": lambda path, text: path.write_bytes(gzip.compress(text.encode())),
    "bytes": lambda path, text: path.write_bytes(text.encode("latin-1")),
    "fifo": lambda path, _: os.mkfifo(path),
    "link": lambda path, target: path.symlink_to(target),
    "copy": lambda path, name: shutil.copy(POLICY_DIR / name, path),
    "digits": lambda path, count: path.write_text('{"question": "1?", "answer": 1' + "0" * count + "}"),
    "prompt": lambda path, size: path.write_text(json.dumps({"question": "1+2=" * (size // 4), "answer": "3"})),
    "parquet": write_table,
}


def write(words: str) -> None:
    """Write those files of the table, with their folders, whose names are in the words."""
    for name, content in FILES.items():
        if name.split("/")[0] not in words:
            continue
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content)
        else:
            (kind, value), *others = content.items()
            BUILDERS[kind](path, value, *(other for _, other in others))


@pytest.mark.parametrize(*ROWS)
def test_wrong_inputs(job, capsys, monkeypatch, command, words, kind, said):
    for module in (models.hub, training_rows):
        monkeypatch.setattr(module, "unreachable", lambda: "no network here")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("openrlhf_shear.doctor.gpu.ask_driver", lambda: (None, (0, 0), ()))
    write(words)
    Path("token").write_text("a" * 32)
    words = words.replace("LONG", "a" * 300)
    train = command == "train"
    line = job(words) if train else words.split()
    main = train_ppo_ray.main if train else import_module(f"openrlhf_shear.cli.{command}").main
    before = files_here()
    if kind == "refused":
        told = refusal(capsys, line, main)
    else:
        train_ppo_ray.read(line)
        told = capsys.readouterr().err
    assert all(part in told for part in said.split(" | ")), told
    assert files_here() == before


def test_there_are_many_and_each_is_another():
    lines = [(command, words) for command, words, *_ in ROWS[1]]
    assert len({*lines}) == len(lines) >= 80
