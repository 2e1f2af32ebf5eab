"""Lines of a first hour, each with its answer in a line: tests/data/first_hour.txt."""

from pathlib import Path

import pytest
from cases import table
from command_lines import ROOT, files_here, refusal

from openrlhf_shear.cli import train_ppo_ray
from openrlhf_shear.data import hub, training_rows
from openrlhf_shear.preflight import models

FILES = table("preflight", "FIRST_HOUR")


def rows() -> list[tuple[str, str, list[str]]]:
    text = (ROOT / "tests" / "data" / "first_hour.txt").read_text()
    lines = [line.split(" => ") for line in text.splitlines() if line and not line.startswith("#")]
    return [(words, *(kind_said := said.split(" | "))[:1], kind_said[1:]) for words, said in lines]


@pytest.mark.parametrize(("words", "kind", "said"), rows())
def test_answer(job, capsys, monkeypatch, tmp_path, words, kind, said):
    for module in (models.hub, training_rows):
        monkeypatch.setattr(module, "unreachable", lambda: "no network here")
    monkeypatch.syspath_prepend(tmp_path)
    line = job(words)
    for name in FILES:
        if name.split(".")[0].split("/")[0] in words:
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_bytes(FILES[name].encode("latin-1"))
    before = files_here()
    if kind == "refused":
        told = refusal(capsys, line)
        assert "\n" not in told or "things are wrong" in said[0], told
    else:
        assert kind == "told"
        train_ppo_ray.read(line)
        told = capsys.readouterr().err
    assert all(part in told for part in said), told
    assert files_here() == before


def test_there_are_many_and_each_is_another():
    words = [row[0] for row in rows()]
    assert len(set(words)) == len(words) >= 80


def test_a_hub_that_does_not_answer_is_said_once_without_retries(monkeypatch):
    from huggingface_hub import constants, utils

    asked = []

    class Session:
        def head(self, url, timeout):
            asked.append((url, timeout))
            raise OSError("no route")

    monkeypatch.setattr(utils, "get_session", Session)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # true where a refusal's test imported it first
    hub.unreachable.cache_clear()
    try:
        assert hub.unreachable().endswith(": no route") and hub.unreachable().startswith("https://")
    finally:
        hub.unreachable.cache_clear()
    assert len(asked) == 1 and asked[0][1] == hub.SECONDS
